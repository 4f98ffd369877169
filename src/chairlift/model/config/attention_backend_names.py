"""BACKENDS, LIBRARY_BACKENDS, resolve_backend_name: the names of attention backends. Imports no torch.

attention/registry.py creates a backend by its name.
"""

import importlib.util
from collections.abc import Mapping

from chairlift.core.errors import ConfigError
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.device.triton_package import triton_obstacle

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


def check_cache_shapes(name: str, groups: LayerGroups) -> None:
    """Raise ConfigError for a package's backend and layers whose heads in the cache differ in number or width."""
    if groups.has_several_shapes and BACKEND_ALIASES.get(name, name) in LIBRARY_BACKENDS:
        raise ConfigError(
            f"attention_backend {name!r} cannot run a model whose layers have key/value heads of several numbers or "
            "widths; leave attention_backend out, or set it to torch, or to triton on a GPU",
            option="attention_backend",
        )


def installed_backends() -> list[str]:
    """Return the names of all backends, of those of packages the ones whose package is installed."""
    return [*BACKENDS, *(name for name, module in LIBRARY_MODULES.items() if importlib.util.find_spec(module))]
