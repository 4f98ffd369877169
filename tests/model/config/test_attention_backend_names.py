"""Attention backends by name: "auto" depends on the device, aliases have a backend, and packages must be installed."""

import importlib.util

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.config.attention_backend_names import (
    BACKEND_ALIASES,
    BACKENDS,
    LIBRARY_BACKENDS,
    LIBRARY_MODULES,
    check_backend_name,
    check_cache_shapes,
    installed_backends,
    resolve_backend_name,
)
from support_attention_shapes import SHAPES, attention_config
from support_cuda_device import simulate_gpu


def test_auto_is_torch_on_gpus_that_tritons_kernels_are_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, {"cuda:0": (7, 5), "cuda:1": (8, 0)})
    assert [resolve_backend_name("auto", device, "float16") for device in ("cuda:0", "cuda:1")] == ["torch", "triton"]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert resolve_backend_name("auto", "cuda:1", "float16") == "torch"


def test_packages_are_listed_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(LIBRARY_MODULES) == list(LIBRARY_BACKENDS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert installed_backends() == list(BACKENDS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "flash_attn_interface" or None)
    assert installed_backends() == [*BACKENDS, "fa3"]


def test_every_name_and_alias_passes_the_check_and_others_do_not() -> None:
    for name in ("auto", *BACKENDS, *LIBRARY_BACKENDS, *BACKEND_ALIASES):
        check_backend_name(name)
    with pytest.raises(ConfigError, match="attention_backend 'Torch' is unknown; known are auto, torch, triton"):
        check_backend_name("Torch")


def test_backends_of_packages_are_refused_where_layers_have_several_shapes() -> None:
    several = attention_config(**SHAPES["equal widths"]).layer_groups
    for name in ("auto", *BACKENDS, "torch_native", "TRITON_ATTN"):
        check_cache_shapes(name, several)
    for name in (*LIBRARY_BACKENDS, "FLASH_ATTN"):
        check_cache_shapes(name, attention_config(**SHAPES["one shape"]).layer_groups)
        message = f"attention_backend '{name}' cannot run a model whose layers have key/value heads of several numbers"
        with pytest.raises(ConfigError, match=message):
            check_cache_shapes(name, several)
