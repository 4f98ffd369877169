"""GatedDeltaNet against transformers' modules of Qwen3.5 and Qwen3-Next, and its states between steps."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

from chairlift.model.config.state_layers import GatedDeltaNetConfig, ba_row_order, qkvz_row_order
from support_state_layers import (
    HIDDEN,
    StateLayer,
    compare_with_module,
    compute_in_float64,
    load_layer,
    parameter_loader,
)

CONFIG = GatedDeltaNetConfig(num_key_heads=2, num_value_heads=6, key_dim=16, value_dim=8)
SIZES = {
    "hidden_size": HIDDEN, "num_hidden_layers": 1, "layer_types": ["linear_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 32,
}  # fmt: skip

Make = Callable[[], tuple[StateLayer, torch.nn.Module, object]]


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    """Make a module's parameters random, also those that are initialised with ones, in float64."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.0 if name == "A_log" else 0.2)
    return module


def of_qwen3_5() -> tuple[StateLayer, torch.nn.Module, object]:
    torch.manual_seed(3)  # of the module's own parameters, too
    config = Qwen3_5TextConfig(**SIZES)
    module = randomized(modeling_qwen3_5.Qwen3_5GatedDeltaNet(config, 0))
    parameters = {f"layer.{name}": value.detach() for name, value in module.named_parameters()}
    return load_layer(CONFIG, parameter_loader(parameters)), module, config


def of_qwen3_next() -> tuple[StateLayer, torch.nn.Module, object]:
    """The rows of the grouped projections are put into the order of separate ones."""
    torch.manual_seed(3)  # of the module's own parameters, too
    config = Qwen3NextConfig(**SIZES)
    module = randomized(modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0))
    parameters = {f"layer.{name}": value.detach() for name, value in module.named_parameters()}
    qkvz = parameters.pop("layer.in_proj_qkvz.weight")[qkvz_row_order(CONFIG)]
    ba = parameters.pop("layer.in_proj_ba.weight")[ba_row_order(CONFIG)]
    split: dict[str, Tensor] = dict(
        zip(("layer.in_proj_qkv.weight", "layer.in_proj_z.weight"), qkvz.split([CONFIG.channels, 48]), strict=True)
    )
    split |= zip(("layer.in_proj_b.weight", "layer.in_proj_a.weight"), ba.split(6), strict=True)
    return load_layer(CONFIG, parameter_loader(parameters | split)), module, config


@pytest.mark.parametrize(("make", "modeling"), [(of_qwen3_5, modeling_qwen3_5), (of_qwen3_next, modeling_qwen3_next)])
def test_all_tokens_equal_transformers_in_float64(
    make: Make, modeling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, module, config = make()
    assert 1e-12 < compare_with_module(layer, module, config) < 1e-4, "transformers computes in part in float32"
    compute_in_float64(monkeypatch, modeling)
    assert compare_with_module(layer, module, config) < 1e-12
