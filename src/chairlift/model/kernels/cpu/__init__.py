"""C++ kernels for CPUs: a library without torch behind a C interface, compiled when Chairlift is installed."""
