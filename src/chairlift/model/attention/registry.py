"""backend_factory, make_backend: create an attention backend by its name. Imports no backend before it is asked for."""

import importlib
from collections.abc import Callable
from functools import partial

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.config.attention_backend_names import (
    BACKENDS,
    LIBRARY_BACKENDS,
    check_backend_name,
    resolve_backend_name,
)
from chairlift.model.device.triton_package import has_triton, is_interpreted, triton_obstacle


def backend_factory(
    name: str, device: str = "cpu", dtype: str = "float32", *, deterministic: bool = False
) -> Callable[[], AttentionBackend]:
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
) -> AttentionBackend:
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
