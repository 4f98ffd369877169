"""MLP and MLPWithExperts against transformers' layers in float64."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.config.experts_config import ExpertsConfig
from chairlift.model.layers.mlp import MLP, MLPWithExperts
from chairlift.model.layers.ops import TorchOps
from support_architectures import config_of
from support_experts import canonical_tensors, loader_of
from support_models import tiny_hf_model

OPS = TorchOps()


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensors_of(kind: str, **changes: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return transformers' first layer, and the tensors of the model by canonical names."""
    model = tiny_hf_model(kind, 4, **changes)
    return model.model.layers[0], canonical_tensors("Gemma4ForCausalLM", model.state_dict())


def test_an_mlp_has_the_neurons_that_it_is_loaded_with() -> None:
    _, tensors = tensors_of("gemma4")
    mlp = MLP.load(loader_of(tensors), "model.layers.3.mlp", config_of("gemma4"), 192)
    assert mlp.gate_up.weight.shape == (384, 64)  # type: ignore[union-attr]
    x = rows(5)
    gate, up = functional.linear(x, tensors["model.layers.3.mlp.gate_proj.weight"]), functional.linear(
        x, tensors["model.layers.3.mlp.up_proj.weight"]
    )  # fmt: skip
    expected = functional.linear(
        functional.gelu(gate, approximate="tanh") * up, tensors["model.layers.3.mlp.down_proj.weight"]
    )
    torch.testing.assert_close(mlp(x, OPS), expected, rtol=1e-12, atol=1e-12)


def test_experts_beside_an_mlp_are_those_of_transformers() -> None:
    layer, tensors = tensors_of("gemma4_moe")
    config = config_of("gemma4_moe")
    assert isinstance(config.experts, ExpertsConfig) and config.expert_norms is not None
    both = MLPWithExperts.load(
        loader_of(tensors), "model.layers.0", config, config.experts, config.expert_norms, config.intermediate_size
    )
    x, normed = rows(20), rows(20, seed=2)
    with torch.no_grad():
        _, factors, chosen = layer.router(x)
        routed = layer.experts(layer.pre_feedforward_layernorm_2(x), chosen, factors)
        expected = layer.post_feedforward_layernorm_1(layer.mlp(normed)) + layer.post_feedforward_layernorm_2(routed)
    assert len(set(chosen.flatten().tolist())) > 2
    torch.testing.assert_close(both(x, normed, OPS), expected, rtol=1e-6, atol=1e-6)
