"""has_triton: whether the package triton is installed, which is looked up and not imported."""

import importlib.util


def has_triton() -> bool:
    """Return whether triton can be imported; torch's builds for CUDA bring it."""
    return importlib.util.find_spec("triton") is not None
