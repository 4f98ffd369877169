"""Names of attention backends and where they live; a backend is imported when it is asked for."""

import importlib
from collections.abc import Mapping

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend

BACKENDS: Mapping[str, str] = {
    "reference": "chairlift.model.attention.reference:ReferenceAttention",
}
"""Name of an option `attention_backend` -> "module:class"; the class takes no arguments."""


def make_backend(name: str) -> AttentionBackend:
    """Import and make the backend of a name. Raises ConfigError when there is none."""
    if name not in BACKENDS:
        raise ConfigError(
            f"attention_backend {name!r} is unknown; known are {', '.join(BACKENDS)}", option="attention_backend"
        )
    module, _, kind = BACKENDS[name].partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), kind)()
    return backend
