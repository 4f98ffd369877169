"""BACKENDS, LIBRARY_BACKENDS, backend_factory, make_backend: attention backends by name. Imports no torch at once."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError
from chairlift.model.triton_package import has_triton, is_interpreted, triton_obstacle

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

LIBRARY_BACKENDS: Mapping[str, str] = {
    "flashinfer": "chairlift.model.attention.flashinfer:flashinfer_factory",
    "fa3": "chairlift.model.attention.flash_attention:flash_attention_factory",
}
"""The same for backends that call a package which the user installs -> "module:function"; see backend_factory.

The function takes device and dtype, checks package and GPU, and returns what creates the backend.

They are chosen by name only, never by "auto".
"""

LIBRARY_MODULES: Mapping[str, str] = {"flashinfer": "flashinfer", "fa3": "flash_attn_interface"}
"""What these import."""

BACKEND_ALIASES: Mapping[str, str] = {
    "FLASHINFER": "flashinfer", "FLASH_ATTN": "fa3", "flash_attn": "fa3", "TRITON_ATTN": "triton",
    "triton_attn": "triton", "TORCH_SDPA": "torch", "torch_native": "torch",
}  # fmt: skip
"""Names in vLLM and SGLang."""

TRITON_DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes of the backend `triton`."""


def resolve_backend_name(name: str, device: str, dtype: str) -> str:
    """Return the name of the backend that `name`, possibly "auto" or an alias, selects.

    "auto" is triton where Triton's kernels run on the device and have the dtype, and torch otherwise.

    Args:
        name: value of the option `attention_backend`.
        device: a torch device, such as "cpu" or "cuda:1".
        dtype: of keys and values, such as "bfloat16".
    """
    if name != AUTO:
        return BACKEND_ALIASES.get(name, name)
    return "triton" if dtype in TRITON_DTYPES and not triton_obstacle(device) else "torch"


def check_backend_name(name: str) -> None:
    """Raise ConfigError for a name that is neither "auto" nor that of a backend, nor an alias."""
    known = (AUTO, *BACKENDS, *LIBRARY_BACKENDS)
    if name not in (*known, *BACKEND_ALIASES):
        raise ConfigError(
            f"attention_backend {name!r} is unknown; known are {', '.join(known)}", option="attention_backend"
        )


def installed_backends() -> list[str]:
    """Return the names of all backends, of those of packages the ones whose package is installed."""
    return [*BACKENDS, *(name for name, module in LIBRARY_MODULES.items() if importlib.util.find_spec(module))]


def backend_factory(
    name: str, device: str = "cpu", dtype: str = "float32", *, deterministic: bool = False
) -> Callable[[], "AttentionBackend"]:
    """Import a backend by name, or "auto" for this device and dtype, and return what creates it.

    With `deterministic` a token's bits depend on its own sequence alone. Raises ConfigError for an unknown name, for
    one that cannot run on the device, and for another backend than triton with `deterministic`.
    """
    check_backend_name(name)
    name = resolve_backend_name(name, device, dtype)
    if name == "triton":
        _check_triton(device)
    if deterministic and name != "triton":
        raise ConfigError(
            f"deterministic needs attention_backend triton, it is {name}; leave attention_backend out",
            option="deterministic",
        )
    module, _, kind = {**BACKENDS, **LIBRARY_BACKENDS}[name].partition(":")
    found = getattr(importlib.import_module(module), kind)
    if name in LIBRARY_BACKENDS:
        factory: Callable[[], AttentionBackend] = found(device, dtype)
        return factory
    return partial(found, deterministic=True) if deterministic else found


def make_backend(
    name: str, device: str = "cpu", dtype: str = "float32", *, deterministic: bool = False
) -> "AttentionBackend":
    """Create a backend by name; arguments and errors are those of backend_factory."""
    return backend_factory(name, device, dtype, deterministic=deterministic)()


def _check_triton(device: str) -> None:
    if not has_triton():
        raise ConfigError(
            "attention_backend 'triton' needs the package triton, which is not installed; "
            "install it or set attention_backend to torch",
            option="attention_backend",
        )
    if (obstacle := triton_obstacle(device)) and not is_interpreted():
        raise ConfigError(
            f"attention_backend 'triton' cannot run: {obstacle}; set attention_backend to torch, or leave it out",
            option="attention_backend",
        )
