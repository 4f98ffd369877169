"""canonical_experts: the names and layouts that transformers saves, and parts of a slice without the rest."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.formats.stacked_experts import WeightSlice, canonical_experts
from support_experts import EXPERTS, HeldWeight
from support_shares import for_each

TINY: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "vocab_size": 32, "num_experts_per_tok": 2, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
QWEN = {"num_experts": 4, "moe_intermediate_size": 6, "intermediate_size": 10, "shared_expert_intermediate_size": 14}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MixtralForCausalLM": ("mixtral", "MixtralConfig", {"num_local_experts": 4, "intermediate_size": 6}),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeConfig", QWEN),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "Qwen2MoeConfig", QWEN),
    "Qwen3_5MoeForCausalLM": (
        "qwen3_5_moe", "Qwen3_5MoeTextConfig", {**QWEN, "layer_types": ["full_attention"]}
    ),
    "GraniteMoeForCausalLM": ("granitemoe", "GraniteMoeConfig", {"num_local_experts": 4, "intermediate_size": 6}),
    "GptOssForCausalLM": ("gpt_oss", "GptOssConfig", {"num_local_experts": 4, "intermediate_size": 6}),
    "Lfm2MoeForCausalLM": (
        "lfm2_moe", "Lfm2MoeConfig",
        {**QWEN, "layer_types": ["full_attention"], "num_dense_layers": 0},
    ),
}  # fmt: skip


def saved(architecture: str, folder: Path) -> Any:
    """Save a tiny model with random numbers; return the layer that has its experts."""
    model, config_name, fields = MODELS[architecture]
    config = getattr(importlib.import_module(f"transformers.models.{model}.configuration_{model}"), config_name)
    made = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), architecture)
    theirs = made(config(**{**TINY, **fields}))
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in [*theirs.parameters(), *theirs.buffers()]:
            if parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=dice))
    theirs.save_pretrained(folder)
    layer = theirs.model.layers[0]
    return next(getattr(layer, name) for name in ("mlp", "block_sparse_moe", "feed_forward") if hasattr(layer, name))


def their_experts(architecture: str, block: Any) -> dict[str, Tensor]:
    """Return the experts' tensors of transformers' module by canonical name."""
    found = {}
    transposed = architecture == "GptOssForCausalLM"
    for index in range(4):
        gate_up, down = block.experts.gate_up_proj[index], block.experts.down_proj[index]
        if transposed:
            gate, up, down = gate_up[:, ::2].T, gate_up[:, 1::2].T, down.T
            biases = {"gate": block.experts.gate_up_proj_bias[index, ::2],
                      "up": block.experts.gate_up_proj_bias[index, 1::2],
                      "down": block.experts.down_proj_bias[index]}  # fmt: skip
            found.update({f"experts.{index}.{name}_proj.bias": bias for name, bias in biases.items()})
        else:
            gate, up = gate_up.chunk(2)
        parts = {"gate": gate, "up": up, "down": down}
        found.update({f"experts.{index}.{name}_proj.weight": weight for name, weight in parts.items()})
    router = block.router if hasattr(block, "router") else block.gate
    found["gate.weight"] = router.weight
    if transposed:
        found["gate.bias"] = router.bias
    if architecture == "Lfm2MoeForCausalLM":
        found["gate.e_score_correction_bias"] = block.expert_bias
    if hasattr(block, "shared_expert"):
        for name in ("gate", "up", "down"):
            found[f"shared_expert.{name}_proj.weight"] = getattr(block.shared_expert, f"{name}_proj").weight
        found["shared_expert_gate.weight"] = block.shared_expert_gate.weight
    return {f"model.layers.0.mlp.{name}": tensor.detach() for name, tensor in found.items()}


@for_each("architecture", MODELS)
def test_what_transformers_saves_has_canonical_names_and_numbers(tmp_path: Path, architecture: str) -> None:
    folder = tmp_path / architecture
    block = saved(architecture, folder)
    found = dict(canonical_experts(EXPERTS[architecture], stored_weights(folder, architecture)))
    expected = their_experts(architecture, block)
    assert {name for name in found if ".mlp." in name} == set(expected)
    for name, tensor in expected.items():
        stored = found[name]
        assert stored.shape == tuple(tensor.shape) and stored.dense_dtype == "float32" and stored.codes_type is None
        assert torch.equal(stored.dense(), tensor), name
        last = tensor.shape[0]
        part = (slice(last // 2, last), *(slice(1, size) for size in tensor.shape[1:]))
        assert torch.equal(stored.dense(part), tensor[part]), name
    assert "model.embed_tokens.weight" in found and "model.layers.0.self_attn.q_proj.weight" in found


def named(architecture: str, name: str, *shape: int) -> dict[str, Tensor]:
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    return {
        found: each.dense()
        for found, each in canonical_experts(EXPERTS[architecture], [(name, HeldWeight(name, tensor))])
    }


def test_the_shared_mlp_of_granite_is_split_in_gate_and_up() -> None:
    found = named("GraniteMoeHybridForCausalLM", "model.layers.2.shared_mlp.input_linear.weight", 4, 3)
    assert {name: rows[:, 0].tolist() for name, rows in found.items()} == {
        "model.layers.2.mlp.shared_expert.gate_proj.weight": [0.0, 3.0],
        "model.layers.2.mlp.shared_expert.up_proj.weight": [6.0, 9.0],
    }
    found = named("GraniteMoeHybridForCausalLM", "model.layers.2.shared_mlp.output_linear.weight", 4, 3)
    assert list(found) == ["model.layers.2.mlp.shared_expert.down_proj.weight"]


@for_each(
    ("architecture", "name", "canonical"),
    [
        ("DeepseekV3ForCausalLM", "mlp.shared_experts.up_proj.weight", "mlp.shared_expert.up_proj.weight"),
        ("Glm4MoeForCausalLM", "mlp.gate.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
        ("Lfm2MoeForCausalLM", "feed_forward.w2.weight", "mlp.down_proj.weight"),
        ("Gemma4ForCausalLM", "router.proj.weight", "mlp.gate.weight"),
        ("Gemma4ForCausalLM", "router.per_expert_scale", "mlp.gate.per_expert_scale"),
        ("Gemma4ForCausalLM", "mlp.gate_proj.weight", "mlp.gate_proj.weight"),
        ("Qwen3MoeForCausalLM", "mlp.gate_proj.weight", "mlp.gate_proj.weight"),
    ],
)
def test_names_of_single_tensors(architecture: str, name: str, canonical: str) -> None:
    assert list(named(architecture, f"model.layers.3.{name}", 2, 2)) == [f"model.layers.3.{canonical}"]


def test_a_stacked_tensor_of_another_shape_is_named() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(ModelError, match=r"gate_up_proj in .* has shape \(2, 2\), stacked experts require 3 axes"):
        named("Qwen3_5MoeForCausalLM", name, 2, 2)
    with pytest.raises(ModelError, match=r"has shape \(2, 3, 2\), gates and ups require an even number"):
        named("Qwen3_5MoeForCausalLM", name, 2, 3, 2)


def test_a_slice_says_where_it_is() -> None:
    whole = HeldWeight("all", torch.zeros(3, 4, 5))
    part = WeightSlice(whole, 1, range(0, 5, 2), is_transposed=True)
    assert part.shape == (3, 4) and part.name == "all" and part.file == whole.file and part.dtype == "F64"
