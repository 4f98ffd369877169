"""Experts against transformers' own layers in float64; rows that do not depend on their batch; shared experts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.experts_config import read_experts
from chairlift.model.layers import onednn_linear
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats.stacked_experts import canonical_experts
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.shard import Shard
from chairlift.model.weights.stored_weight import by_name
from support_experts import (
    EXPERTS,
    HIDDEN,
    LAYOUTS,
    NAME,
    HeldWeight,
    canonical_tensors,
    config_of,
    hf_layer,
    layer_tensors,
    loader_of,
    output_of,
    randomized,
)
from support_shares import for_each

OPS, CPU = TorchOps(), torch.device("cpu")
FLOAT32_ROUTERS = {"DeepseekV3ForCausalLM": 1e-6, "Glm4MoeForCausalLM": 1e-6}
"""Architecture -> tolerance where the factors are float32 in a float64 model and their sum has another order."""


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loaded(architecture: str, module: Any, dtype: torch.dtype = torch.float64, **changes: Any) -> Experts:
    loader = loader_of(layer_tensors(architecture, module), dtype)
    return Experts.load(loader, NAME, config_of(architecture, **changes), HIDDEN)


@for_each("count", [1, 40])
@for_each("architecture", LAYOUTS)
def test_a_layer_is_that_of_transformers(architecture: str, count: int) -> None:
    module, x = hf_layer(architecture), rows(count)
    found, expected = loaded(architecture, module)(x, OPS), output_of(module, x)
    tolerance = FLOAT32_ROUTERS.get(architecture, 1e-10)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert expected.std() > 0.1


@for_each("architecture", FLOAT32_ROUTERS)
def test_with_transformers_factors_the_experts_are_exact(architecture: str) -> None:
    module, x = hf_layer(architecture), rows(30)
    experts = loaded(architecture, module)
    with torch.no_grad():
        _, factors, chosen = module.gate(x)
    assert experts.shared is not None
    found = OPS.sum_of_experts(x, chosen, factors, experts.weights) + experts.shared(x, OPS)
    torch.testing.assert_close(found, output_of(module, x), rtol=1e-10, atol=1e-10)


def test_granite_4_adds_its_shared_mlp() -> None:
    from transformers.models.granitemoehybrid.configuration_granitemoehybrid import GraniteMoeHybridConfig
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMLP, GraniteMoeHybridMoE

    fields: dict[str, Any] = {
        "num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 20, "shared_intermediate_size": 28,
    }  # fmt: skip
    theirs = GraniteMoeHybridConfig(hidden_size=HIDDEN, mamba_n_heads=2, mamba_d_head=24, **fields)
    theirs._experts_implementation = "eager"
    parts = {"block_sparse_moe": GraniteMoeHybridMoE(theirs), "shared_mlp": GraniteMoeHybridMLP(theirs)}
    for seed, part in enumerate(parts.values()):
        randomized(part.double().eval(), seed)
    named = {
        f"model.layers.0.{prefix}.{name}": tensor
        for prefix, part in parts.items() for name, tensor in part.state_dict().items()
    }  # fmt: skip
    architecture, x = "GraniteMoeHybridForCausalLM", rows(30)
    config = read_experts(EXPERTS[architecture], ConfigReader(fields, EXPERTS[architecture].defaults))
    assert config is not None
    experts = Experts.load(loader_of(canonical_tensors(architecture, named)), NAME, config, HIDDEN)
    with torch.no_grad():
        expected = parts["block_sparse_moe"](x[None])[0] + parts["shared_mlp"](x)
    torch.testing.assert_close(experts(x, OPS), expected, rtol=1e-10, atol=1e-10)


def test_gemmas_router_reads_other_rows_than_its_experts() -> None:
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts, Gemma4TextRouter

    fields: dict[str, Any] = {
        "num_experts": 9, "top_k_experts": 3, "moe_intermediate_size": 20, "enable_moe_block": True,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    theirs = Gemma4TextConfig(hidden_size=HIDDEN, **fields)
    theirs._experts_implementation = "eager"
    parts = {"router": Gemma4TextRouter(theirs), "experts": Gemma4TextExperts(theirs)}
    for seed, part in enumerate(parts.values()):
        randomized(part.double().eval(), seed)
    named = {
        f"model.layers.0.{prefix}.{name}": tensor
        for prefix, part in parts.items() for name, tensor in part.state_dict().items()
    }  # fmt: skip
    architecture, residual, normed = "Gemma4ForCausalLM", rows(30) * 4, rows(30, seed=5)
    config = read_experts(EXPERTS[architecture], ConfigReader(fields, EXPERTS[architecture].defaults))
    assert config is not None
    experts = Experts.load(loader_of(canonical_tensors(architecture, named)), NAME, config, HIDDEN)
    with torch.no_grad():
        _, factors, chosen = parts["router"](residual)
        expected = parts["experts"](normed, chosen, factors)
    found = experts.of_chosen(normed, experts.router(residual, OPS), OPS)
    # The float32 island: the router's norm and softmax.
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    same = experts.of_chosen(normed, experts.router(residual, OPS)._replace(factors=factors), OPS)
    torch.testing.assert_close(same, expected, rtol=1e-10, atol=1e-10)


@for_each("architecture", ["Qwen3NextForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"])
def test_a_row_is_the_same_alone_and_in_any_batch_and_order(architecture: str) -> None:
    """Products of torch round by the number of rows; all else may not depend on it."""
    experts, x = loaded(architecture, hf_layer(architecture)), rows(37)
    together, bounds = experts(x, OPS), {"rtol": 1e-12, "atol": 1e-12}
    for first, count in ((0, 1), (5, 1), (3, 7), (20, 17)):
        torch.testing.assert_close(experts(x[first : first + count], OPS), together[first : first + count], **bounds)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(experts(x[order], OPS), together[order], **bounds)
    assert experts(x[:0], OPS).shape == (0, HIDDEN)


@for_each("architecture", LAYOUTS)
def test_every_tensor_of_transformers_is_loaded_once_and_no_other(architecture: str) -> None:
    tensors, taken = layer_tensors(architecture, hf_layer(architecture)), []

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        taken.append(name)
        assert tuple(tensors[name].shape) == shape
        return tensors[name]

    Experts.load(ParameterLoader(read, read_float32=read), NAME, config_of(architecture), HIDDEN)
    assert sorted(taken) == sorted(tensors)


@for_each("architecture", ["Qwen2MoeForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"])
def test_the_parts_of_ranks_add_up_to_the_layer(architecture: str) -> None:
    module, x = hf_layer(architecture), rows(20)
    prefix = LAYOUTS[architecture].prefix
    stored = (
        (name, HeldWeight(name, tensor))
        for name, tensor in ((f"model.layers.0.{prefix}.{key}", each) for key, each in module.state_dict().items())
    )
    checkpoint = Checkpoint(by_name(canonical_experts(EXPERTS[architecture], stored)))
    config, total = config_of(architecture), torch.zeros_like(x)
    for rank in range(2):
        loader = checkpoint.loader(torch.float64, CPU, Shard(rank, 2))
        total += Experts.load(loader, NAME, config.of_ranks(2), HIDDEN)(x, OPS)
    torch.testing.assert_close(total, loaded(architecture, module)(x, OPS), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@for_each("architecture", LAYOUTS)
def test_in_narrow_dtypes_only_roundings_differ(architecture: str, dtype: torch.dtype) -> None:
    module, x = hf_layer(architecture), rows(30)
    exact = loaded(architecture, module)
    narrow = x.to(dtype)
    # One choice for both: rounded logits may choose another expert.
    chosen = exact.router(narrow.double(), OPS)
    same = chosen._replace(factors=chosen.factors.float())
    expected = exact.of_chosen(narrow.double(), chosen, OPS)
    for ops in (OPS, FusedOps(packs=False), FusedOps(packs=onednn_linear.usable(dtype, CPU))):
        loader = TorchBackend(ops).wrap_loader(loader_of(layer_tensors(architecture, module), dtype))
        experts = Experts.load(loader, NAME, config_of(architecture), HIDDEN)
        found = experts.of_chosen(narrow, same, ops)
        assert found.dtype == dtype
        error = (found.double() - expected).norm() / expected.norm()
        assert error < (0.02 if dtype == torch.bfloat16 else 2e-6)
