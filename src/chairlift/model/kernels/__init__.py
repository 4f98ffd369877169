"""Chairlift's own kernels. Their results must agree with those of the torch backend."""
