"""Mamba2 against transformers' modules of Granite 4, Nemotron-H and Mamba-2."""

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from transformers import GraniteMoeHybridConfig, NemotronHConfig
from transformers.models.granitemoehybrid import modeling_granitemoehybrid
from transformers.models.nemotron_h import modeling_nemotron_h

from chairlift.model.config.state_layers import Mamba2Config
from support_state_layers import (
    HIDDEN,
    StateLayer,
    compare_with_module,
    compute_in_float64,
    load_layer,
    parameter_loader,
)

Make = Callable[[], tuple[StateLayer, torch.nn.Module, object]]


def loaded(config: Mamba2Config, module: torch.nn.Module) -> tuple[StateLayer, torch.nn.Module]:
    """Return our layer with the random parameters of a module, and the module in float64."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.0 if name == "A_log" else 0.2)
    parameters = {f"layer.{name}": value.detach() for name, value in module.named_parameters()}
    return load_layer(config, parameter_loader(parameters)), module


def of_granite(limits: tuple[float, float] = (0.0, math.inf)) -> tuple[StateLayer, torch.nn.Module, object]:
    torch.manual_seed(3)  # of the module's own parameters, too
    config = GraniteMoeHybridConfig(
        hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["mamba"], mamba_n_heads=6, mamba_n_groups=2,
        mamba_d_state=8, mamba_d_head=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True,
        mamba_proj_bias=True, rms_norm_eps=1e-5, num_attention_heads=2, vocab_size=32,
        time_step_limit=limits,
    )  # fmt: skip
    own = Mamba2Config(
        num_heads=6, head_dim=16, state_size=8, num_groups=2, projection_bias=True, min_dt=limits[0], max_dt=limits[1]
    )
    return *loaded(own, modeling_granitemoehybrid.GraniteMoeHybridMambaLayer(config, 0)), config


def of_nemotron() -> tuple[StateLayer, torch.nn.Module, object]:
    torch.manual_seed(3)  # of the module's own parameters, too
    config = NemotronHConfig(
        hidden_size=HIDDEN, layers_block_type=["mamba"], mamba_num_heads=6, mamba_head_dim=4, ssm_state_size=16,
        n_groups=3, conv_kernel=4, use_conv_bias=False, chunk_size=16, time_step_min=0.0, layer_norm_epsilon=1e-5,
        num_attention_heads=2, vocab_size=32,
    )  # fmt: skip
    own = Mamba2Config(num_heads=6, head_dim=4, state_size=16, num_groups=3, conv_bias=False)
    return *loaded(own, modeling_nemotron_h.NemotronHMamba2Mixer(config, 0)), config


@pytest.mark.parametrize(
    ("make", "modeling"), [(of_granite, modeling_granitemoehybrid), (of_nemotron, modeling_nemotron_h)]
)
def test_all_tokens_equal_transformers_in_float64(
    make: Make, modeling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, module, config = make()
    assert 1e-12 < compare_with_module(layer, module, config) < 1e-4, "transformers computes in part in float32"
    compute_in_float64(monkeypatch, modeling)
    assert compare_with_module(layer, module, config) < 1e-12


def test_time_steps_are_limited_as_in_transformers_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decode does not limit them."""
    layer, module, config = of_granite((0.9, 1.3))
    compute_in_float64(monkeypatch, modeling_granitemoehybrid)
    assert compare_with_module(layer, module, config, counts=(70,)) < 1e-12
    assert compare_with_module(layer, module, config, counts=(70, 1)) > 1e-3
