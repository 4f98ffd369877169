"""Backends: how a decoder runs (torch, native CPU kernels, ranks), and which one a model gets."""
