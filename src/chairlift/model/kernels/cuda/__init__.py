"""Kernels for NVIDIA GPUs, written in Triton, which comes with torch's builds for CUDA."""
