"""GPU benchmark: decode, prefill and mixed load on one GPU, against its bandwidth, its GEMM peak and transformers."""
