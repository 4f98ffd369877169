"""ModuleKernels: which are chosen by the options, what they replace, and heads that are not the plain lm_head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chairlift.core.errors import ConfigError
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.layers import onednn_linear
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.transformers.module_kernels import (
    ModuleKernels,
    NativeModuleKernels,
    PackedModuleKernels,
    choose_kernels,
)
from chairlift.model.transformers.replacement_modules import PackedLinear
from support_native import need_native

CPU = torch.device("cpu")


def model(dtype: torch.dtype, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64, eps=1e-6), nn.Linear(64, 77, bias=bias)).to(dtype)


@pytest.mark.parametrize(
    ("options", "dtype", "kind"),
    [
        ({}, "bfloat16", NativeModuleKernels),
        ({}, "float32", NativeModuleKernels),
        ({}, "float16", NativeModuleKernels),
        ({"quantization": "int8"}, "bfloat16", NativeModuleKernels),
        ({"quantization": "int8"}, "float32", NativeModuleKernels),
        ({"kernels": "torch"}, "float64", ModuleKernels),
        ({"attention_backend": "torch"}, "float64", ModuleKernels),
        ({"kv_cache_dtype": "fp8"}, "float64", ModuleKernels),
        ({}, "float64", ModuleKernels),
    ],
)
def test_the_fastest_kernels_of_the_options_are_chosen(
    options: dict[str, Any], dtype: str, kind: type[ModuleKernels]
) -> None:
    need_native()
    assert type(choose_kernels(RunnerConfig(**options), dtype, CPU)) is kind


def test_a_cache_of_8_bit_floats_is_not_for_the_native_kernels() -> None:
    kernels = choose_kernels(RunnerConfig(kv_cache_dtype="fp8"), "bfloat16", CPU)
    assert not isinstance(kernels, NativeModuleKernels) and kernels.attention(16, 16) is None


@pytest.mark.skipif(not onednn_linear.usable(torch.float32, CPU), reason="torch has no oneDNN products here")
def test_float32_on_a_cpu_is_packed_for_onednn() -> None:
    kernels = choose_kernels(RunnerConfig(kernels="torch"), "float32", CPU)
    assert type(kernels) is PackedModuleKernels and not kernels.is_plain and kernels.padded_size(5) == 8


@pytest.mark.parametrize("options", [{"kernels": "native"}, {"quantization": "int8"}])
@pytest.mark.parametrize(("dtype", "device"), [("float64", "cpu"), ("bfloat16", "meta")])
def test_native_kernels_that_are_required_and_do_not_fit_are_an_error(
    options: dict[str, Any], dtype: str, device: str
) -> None:
    with pytest.raises(ConfigError, match="native kernels run on the CPU in bfloat16 and float32, not on"):
        choose_kernels(RunnerConfig(**options), dtype, torch.device(device))


def nothing() -> None:
    """The modules share no input."""


def test_plain_kernels_replace_norms_only() -> None:
    kernels, modules = ModuleKernels(), model(torch.float32)
    kernels.replace_in(modules, nothing)
    assert type(modules[0]) is nn.Linear and kernels.is_plain and kernels.padded_size(5) == 5
    assert (
        kernels.attention(64, 16) is None
        and "0 linear layers, 1 norms, 0 MLPs, 0 activations" in dict(kernels.report())["kernels"]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_compute_the_same(dtype: torch.dtype) -> None:
    modules, x = model(dtype, bias=True), torch.randn(2, 3, 32).to(dtype)
    expected = modules(x)
    PackedModuleKernels(FusedOps(onednn_linear.usable(dtype, CPU))).replace_in(modules, nothing)
    assert isinstance(modules[0], PackedLinear) and isinstance(modules[2], PackedLinear)
    assert torch.allclose(modules(x).double(), expected.double(), atol=0.05 if dtype == torch.bfloat16 else 1e-4)


def native(dtype: str = "bfloat16") -> NativeModuleKernels:
    need_native()
    return NativeModuleKernels(NativeBackend(threads=1, dtype=dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float32", 1e-5), ("float16", 1e-5)])
def test_native_layers_compute_the_same_and_are_reported(dtype: str, tolerance: float) -> None:
    kernels = native(dtype)
    wide = torch_dtype(kernels.compute_dtype(dtype))
    modules, x = model(torch_dtype(dtype), bias=True).to(wide), torch.randn(2, 3, 32).to(wide)
    expected = modules(x)
    kernels.replace_in(modules, nothing)
    assert modules(x).dtype == wide and torch.allclose(modules(x).double(), expected.double(), atol=tolerance)
    assert dict(kernels.report())["replaced modules"] == "2 linear layers, 1 norms, 0 MLPs, 0 activations"
    assert kernels.cpus and kernels.chunk_tokens and kernels.torch_threads == 1


def test_int8_layers_report_their_largest_error() -> None:
    need_native()
    kernels = NativeModuleKernels(NativeBackend("int8", threads=1))
    kernels.replace_in(model(torch.bfloat16), nothing)
    assert "largest error" in dict(kernels.report())["quantization"]


def test_native_attention_needs_its_shapes() -> None:
    kernels = native()
    assert kernels.attention(64, 16) is not None
    assert kernels.attention(20, 16) is None and kernels.attention(64, 20) is None


@pytest.mark.parametrize(
    ("change", "is_fast"),
    [
        (lambda logits: logits, True),
        (lambda logits: 2 * torch.tanh(logits / 2), True),
        (lambda logits: logits / 3, False),
        (lambda logits: logits + 0.5, False),
        (lambda logits: 3 * torch.tanh(logits / 3), False),
    ],
    ids=["plain", "soft cap", "scale", "bias", "another cap"],
)
def test_the_native_head_is_used_only_if_its_logits_are_the_models(
    change: Callable[[Tensor], Tensor], is_fast: bool
) -> None:
    kernels, modules = native(), model(torch.bfloat16)
    modules[2].weight.data.mul_(20)  # type: ignore[operator,union-attr]
    kernels.replace_in(modules, nothing)
    head = kernels.head(modules[2], (None, 2.0), lambda hidden: change(modules[2](hidden).float()).bfloat16())
    assert (head is not None) == is_fast


def test_a_head_with_a_bias_or_of_another_kind_is_the_models() -> None:
    kernels, modules = native(), model(torch.bfloat16, bias=True)
    kernels.replace_in(modules, nothing)
    assert kernels.head(modules[2], (None,), modules[2]) is None
    assert kernels.head(nn.Linear(4, 4), (None,), lambda hidden: hidden) is None
    assert ModuleKernels().head(modules[2], (None,), lambda hidden: hidden) is None


def test_torch_has_its_threads_where_much_is_left_to_it() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.experts = nn.Linear(8, 8), nn.Parameter(torch.zeros(4, 8, 8))

    kernels = native()
    kernels.replace_in(Experts().bfloat16(), nothing)
    assert kernels.torch_threads is None
    kernels = native()
    kernels.replace_in(nn.ModuleList([nn.Embedding(99, 8), nn.Linear(8, 8)]).bfloat16(), nothing)
    assert kernels.torch_threads == 1
