"""Kernels of our own, each beside the torch code that it must agree with."""
