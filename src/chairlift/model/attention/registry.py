"""Names of attention backends and where they live; a backend is imported when it is asked for."""

import importlib
from collections.abc import Mapping

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend

AUTO = "auto"
"""Stands for the backend that is best here."""

BACKENDS: Mapping[str, str] = {
    "torch": "chairlift.model.attention.torch_paged:TorchAttention",
    "reference": "chairlift.model.attention.reference:ReferenceAttention",
}
"""Name of an option `attention_backend` -> "module:class"; the class takes no arguments."""


def resolved(name: str) -> str:
    """Return the name of the backend that a name stands for."""
    return "torch" if name == AUTO else name


def make_backend(name: str) -> AttentionBackend:
    """Import and make the backend of a name, "auto" included. Raises ConfigError when there is none."""
    name = resolved(name)
    if name not in BACKENDS:
        raise ConfigError(
            f"attention_backend {name!r} is unknown; known are {', '.join((AUTO, *BACKENDS))}",
            option="attention_backend",
        )
    module, _, kind = BACKENDS[name].partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), kind)()
    return backend
