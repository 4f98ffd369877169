"""BACKENDS, make_backend: attention backends by name, imported on demand. Imports no torch."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError
from chairlift.model.triton_package import has_triton

if TYPE_CHECKING:
    from chairlift.model.attention.base import AttentionBackend

AUTO = "auto"
"""Name of the best backend for this machine."""

BACKENDS: Mapping[str, str] = {
    "torch": "chairlift.model.attention.torch_paged:TorchAttention",
    "triton": "chairlift.model.attention.triton:TritonAttention",
    "reference": "chairlift.model.attention.reference:ReferenceAttention",
}
"""Value of the option `attention_backend` -> "module:class"; triton's alone takes an argument, `deterministic`."""


TRITON_DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes of the backend `triton`."""


def resolve_backend_name(name: str, device_type: str, dtype: str) -> str:
    """Return the name of the backend that `name`, possibly "auto", selects.

    "auto" is triton on a CUDA device, where triton can be imported and has the dtype, and torch otherwise.

    Args:
        name: value of the option `attention_backend`.
        device_type: "cpu", "cuda" or another type of torch's devices.
        dtype: of keys and values, such as "bfloat16".
    """
    if name != AUTO:
        return name
    return "triton" if device_type == "cuda" and dtype in TRITON_DTYPES and has_triton() else "torch"


def check_backend_name(name: str) -> None:
    """Raise ConfigError for a name that is neither "auto" nor that of a backend."""
    if name not in (AUTO, *BACKENDS):
        raise ConfigError(
            f"attention_backend {name!r} is unknown; known are {', '.join((AUTO, *BACKENDS))}",
            option="attention_backend",
        )


def make_backend(
    name: str, device_type: str = "cpu", dtype: str = "float32", *, deterministic: bool = False
) -> "AttentionBackend":
    """Import a backend by name, or "auto" for this device and dtype, and create it.

    With `deterministic` a token's bits depend on its own sequence alone. Raises ConfigError for an unknown name, for
    triton where it cannot be imported, and for another backend with `deterministic`.
    """
    check_backend_name(name)
    name = resolve_backend_name(name, device_type, dtype)
    if name == "triton" and not has_triton():
        raise ConfigError(
            "attention_backend 'triton' needs the package triton, which is not installed; "
            "install it or set attention_backend to torch",
            option="attention_backend",
        )
    if deterministic and name != "triton":
        raise ConfigError(
            f"deterministic needs attention_backend triton, it is {name}; leave attention_backend out",
            option="deterministic",
        )
    module, _, kind = BACKENDS[name].partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), kind)(
        **({"deterministic": True} if deterministic else {})
    )
    return backend
