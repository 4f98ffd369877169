"""ExpertRouter: transformers' choices and factors, ties by the lower index, numbers that a narrow dtype would round."""

from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.model.config.experts_config import SIGMOID, SOFTMAX, TOP_SOFTMAX, ExpertRouterConfig
from chairlift.model.layers.expert_router import ExpertRouter
from chairlift.model.layers.ops import TorchOps
from support_experts import HIDDEN, LAYOUTS, NAME, canonical_tensors, config_of, hf_layer, layer_tensors, loader_of
from support_shares import for_each

OPS = TorchOps()
FLOAT32_SUMS = ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM")
"""Architectures whose router is float32 in a float64 model, and whose k scores are added in no order of theirs."""


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def their_choice(architecture: str, module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    router = module.router if hasattr(module, "router") else module.gate
    with torch.no_grad():
        if architecture.startswith("Lfm2Moe"):
            _, factors, experts = router(x, module.expert_bias)
        else:
            _, factors, experts = router(x)
    return experts, factors


@for_each("architecture", LAYOUTS)
def test_choices_and_factors_are_those_of_transformers(architecture: str) -> None:
    module, x = hf_layer(architecture), rows(50)
    config = config_of(architecture).router
    router = ExpertRouter.load(loader_of(layer_tensors(architecture, module)), f"{NAME}.gate", config, HIDDEN)
    experts, factors = router(x, OPS)
    their_experts, their_factors = their_choice(architecture, module, x)
    order = their_factors.argsort(dim=-1, descending=True, stable=True)
    if config.has_correction_bias:  # the rank is that of the biased score
        assert torch.equal(experts.sort().values, their_experts.sort().values)
        factors = factors.gather(1, experts.argsort())
        their_factors = their_factors.gather(1, their_experts.argsort())
    else:
        assert torch.equal(experts, their_experts.gather(1, order))
        their_factors = their_factors.gather(1, order)
    tolerance = 3e-7 if architecture in FLOAT32_SUMS else 1e-10
    torch.testing.assert_close(factors.double(), their_factors.double(), rtol=tolerance, atol=0)
    assert len(set(experts.flatten().tolist())) > 2


@for_each("renormalizes", [True, False])
def test_qwens_scores_are_divided_by_their_sum_if_the_file_says_so(renormalizes: bool) -> None:
    architecture = "Qwen3MoeForCausalLM"
    module, x = hf_layer(architecture, norm_topk_prob=renormalizes), rows(20)
    config = config_of(architecture, norm_topk_prob=renormalizes).router
    found = ExpertRouter.load(loader_of(layer_tensors(architecture, module)), f"{NAME}.gate", config, HIDDEN)(x, OPS)
    torch.testing.assert_close(found.factors.double(), their_choice(architecture, module, x)[1], rtol=1e-10, atol=0)
    sums = found.factors.sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums)) == renormalizes


def test_gemmas_router_normalises_scales_and_weights_experts() -> None:
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter

    from support_experts import randomized

    theirs = Gemma4TextConfig(
        hidden_size=HIDDEN, num_experts=9, top_k_experts=3, moe_intermediate_size=20, rms_norm_eps=1e-3
    )
    module = randomized(Gemma4TextRouter(theirs).double().eval(), seed=2)
    named = {f"model.layers.0.router.{name}": tensor for name, tensor in module.state_dict().items()}
    tensors = canonical_tensors("Gemma4ForCausalLM", named)
    config = ExpertRouterConfig(
        num_experts=9, experts_per_token=3, scoring=SOFTMAX, float32="scores", renormalizes=True, norm_eps=1e-3
    )
    x = rows(30) * 3
    found = ExpertRouter.load(loader_of(tensors), f"{NAME}.gate", config, HIDDEN)(x, OPS)
    with torch.no_grad():
        _, factors, experts = module(x)
    assert torch.equal(found.experts, experts)
    # The scale times H ** -0.5 is one product here: the last bits of the float32 scores.
    torch.testing.assert_close(found.factors, factors, rtol=5e-7, atol=0)


def router(scoring: str, logits: Tensor, **fields: Any) -> tuple[Tensor, Tensor]:
    """Route one row for each row of logits [T, E]."""
    correction = fields.pop("correction_bias", None)
    config = ExpertRouterConfig(
        num_experts=logits.shape[1], scoring=scoring, float32="", has_correction_bias=correction is not None, **fields
    )
    return ExpertRouter(config, logits.T.contiguous(), correction_bias=correction)(torch.eye(len(logits)), OPS)


@for_each("scoring", [SOFTMAX, TOP_SOFTMAX, SIGMOID])
def test_of_equal_scores_the_lower_index_is_chosen(scoring: str) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0], [0.0] * 6, [5.0, -1.0, 5.0, -1.0, -1.0, 4.0]])
    experts, _ = router(scoring, logits, experts_per_token=4)
    assert experts.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3], [0, 2, 5, 1]]


def test_many_equal_scores_are_chosen_in_order() -> None:
    experts, factors = router(TOP_SOFTMAX, torch.zeros(3, 300), experts_per_token=60)
    assert experts.tolist() == [list(range(60))] * 3
    assert torch.allclose(factors, torch.full((3, 60), 1 / 60))


def test_a_bias_of_the_choice_changes_no_factor() -> None:
    logits, bias = torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    experts, factors = router(SIGMOID, logits, experts_per_token=2, correction_bias=bias, scaling_factor=2.0)
    assert experts.tolist() == [[0, 3]]
    assert torch.equal(factors[0], 2 * torch.tensor([0.0, 3.0]).sigmoid())


def test_groups_are_chosen_by_their_two_best_and_equal_ones_by_index() -> None:
    logits = torch.tensor([[9.0, -9.0, -9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])  # the best expert is in the worst group
    chosen = {"experts_per_token": 2, "num_groups": 3, "groups_per_token": 1}
    assert router(SIGMOID, logits, **chosen)[0].tolist() == [[3, 4]]
    chosen["groups_per_token"] = 3
    assert router(SIGMOID, logits, **chosen)[0].tolist() == [[0, 3]]


def test_in_16_bits_logits_are_float32_and_the_bias_of_the_choice_is_not_rounded() -> None:
    architecture = "DeepseekV3ForCausalLM"
    tensors = layer_tensors(architecture, hf_layer(architecture))
    tensors[f"{NAME}.gate.e_score_correction_bias"] = torch.full((12,), 1.0) + torch.arange(12) * 2.0**-20
    loader = loader_of(tensors, torch.bfloat16)
    found = ExpertRouter.load(loader, f"{NAME}.gate", config_of(architecture).router, HIDDEN)
    assert found.weight.dtype == torch.float32 and found.correction_bias is not None
    assert len(found.correction_bias.unique()) == 12
    x = rows(40).bfloat16()
    experts, factors = found(x, OPS)
    exact = ExpertRouter.load(
        loader_of({name: tensor.bfloat16().double() if name.endswith("gate.weight") else tensor
                   for name, tensor in tensors.items()}),
        f"{NAME}.gate", config_of(architecture).router, HIDDEN,
    )(x.double(), OPS)  # fmt: skip
    assert factors.dtype == torch.float32 and torch.equal(experts, exact.experts)
    torch.testing.assert_close(factors, exact.factors.float(), rtol=1e-6, atol=0)


def test_parameters_that_the_config_lacks_are_an_error_of_ours() -> None:
    config = config_of("MixtralForCausalLM").router
    with pytest.raises(AssertionError):
        ExpertRouter(config, torch.zeros(5, HIDDEN), bias=torch.zeros(5))
