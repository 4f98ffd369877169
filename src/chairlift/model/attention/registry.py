"""BACKENDS, make_backend: attention backends by name, imported on demand. Imports no torch."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.model.attention.base import AttentionBackend

AUTO = "auto"
"""Name of the best backend for this machine."""

BACKENDS: Mapping[str, str] = {
    "torch": "chairlift.model.attention.torch_paged:TorchAttention",
    "reference": "chairlift.model.attention.reference:ReferenceAttention",
}
"""Value of the option `attention_backend` -> "module:class"; the class takes no arguments."""


def resolve_backend_name(name: str) -> str:
    """Return the name of the backend that `name`, possibly "auto", selects."""
    return "torch" if name == AUTO else name


def check_backend_name(name: str) -> None:
    """Raise ConfigError for a name that is neither "auto" nor that of a backend."""
    if name not in (AUTO, *BACKENDS):
        raise ConfigError(
            f"attention_backend {name!r} is unknown; known are {', '.join((AUTO, *BACKENDS))}",
            option="attention_backend",
        )


def make_backend(name: str) -> "AttentionBackend":
    """Import a backend by name or "auto" and create it. Raises ConfigError for an unknown name."""
    check_backend_name(name)
    name = resolve_backend_name(name)
    module, _, kind = BACKENDS[name].partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), kind)()
    return backend
