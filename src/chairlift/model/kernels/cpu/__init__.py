"""Native CPU kernels: a C++ library with a C interface and without torch, compiled when Chairlift is installed."""
