"""Rotations against transformers' own, bit for bit."""

import json
from typing import Any

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.layers.rope import RopeTable, inverse_frequencies
from support_models import tiny_config

CPU = torch.device("cpu")
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 1000000},
    {"rope_type": "linear", "factor": 8.0},
    {"rope_type": "linear", "factor": 3},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3, "factor": 8.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "rope_theta": 1000000.0, **YARN},
    {"rope_type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "yarn", **YARN, "attention_factor": 1.5},
    {"rope_type": "yarn", **YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6},  # its range is empty
    {"rope_type": "yarn", **YARN, "factor": 1.0, "original_max_position_embeddings": 16},
    {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.3, "factor": 8.0},
    {"rope_type": "proportional", "rope_theta": 10000.0},
]


@pytest.mark.share(20)
@pytest.mark.parametrize("head_dim", [8, 64, 96, 128])
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: "-".join(str(value) for value in rope.values()))
def test_frequencies_equal_transformers_to_the_last_bit(rope: dict[str, Any], head_dim: int) -> None:
    config = tiny_config("llama", rope_parameters=dict(rope), head_dim=head_dim, architectures=["LlamaForCausalLM"])
    theirs = LlamaRotaryEmbedding(config)
    ours = parse_decoder_config(json.loads(config.to_json_string()))
    inv_freq, scaling = inverse_frequencies(ours.rope, head_dim)
    assert torch.equal(inv_freq, theirs.inv_freq)
    assert scaling == theirs.attention_scaling


@pytest.mark.parametrize("head_dim", [8, 64, 96, 128])
def test_divisors_of_frequencies_equal_transformers_longrope_to_the_last_bit(head_dim: int) -> None:
    divisors = (1 + 7 * torch.rand(head_dim // 2, generator=torch.Generator().manual_seed(0))).tolist()
    rope = {
        "rope_type": "longrope", "rope_theta": 500000.0, "short_factor": divisors, "long_factor": divisors,
        "factor": 1.0, "attention_factor": 1.25, "original_max_position_embeddings": 512,
    }  # fmt: skip
    config = tiny_config("llama", rope_parameters=rope, head_dim=head_dim, architectures=["LlamaForCausalLM"])
    theirs = LlamaRotaryEmbedding(config)
    inv_freq, scaling = inverse_frequencies(parse_decoder_config(json.loads(config.to_json_string())).rope, head_dim)
    assert torch.equal(inv_freq, theirs.inv_freq)
    assert scaling == theirs.attention_scaling == 1.25


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rope", [ROPES[0], ROPES[5], ROPES[7]], ids=["default", "llama3", "yarn"])
def test_cosines_and_sines_equal_transformers_to_the_last_bit(rope: dict[str, Any], dtype: torch.dtype) -> None:
    config = tiny_config("llama", rope_parameters=dict(rope), architectures=["LlamaForCausalLM"])
    ours = parse_decoder_config(json.loads(config.to_json_string()))
    table = RopeTable.of(ours.rope, ours.head_dim, 40000, dtype, CPU)
    positions = torch.tensor([0, 1, 7, 255, 8192, 39999, 3])
    theirs = LlamaRotaryEmbedding(config)(torch.empty(1, dtype=dtype), positions[None])
    for found, expected, sign in zip(table.at(positions), theirs, (1, -1), strict=True):
        assert found.dtype == dtype
        left, right = found[:, 0].chunk(2, -1)
        assert torch.equal(torch.cat((sign * left, right), -1), expected[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_heads_of_gemma_4_rotate_as_in_transformers(kind: str, dtype: torch.dtype) -> None:
    config = tiny_config("gemma4", architectures=["Gemma4ForCausalLM"], global_head_dim=64)
    ours = parse_decoder_config(json.loads(config.to_json_string()))
    is_full = kind == "full_attention"
    head_dim, rope = (64, ours.rope) if is_full else (16, ours.sliding_rope)
    table, positions = RopeTable.of(rope, head_dim, 40000, dtype, CPU), torch.tensor([0, 1, 7, 255, 39999])
    theirs = Gemma4TextRotaryEmbedding(config)(torch.empty(1, dtype=dtype), positions[None], kind)
    for found, expected, sign in zip(table.at(positions), theirs, (1, -1), strict=True):
        left, right = found[:, 0].chunk(2, -1)
        assert torch.equal(torch.cat((sign * left, right), -1), expected[0])
    if is_full:
        assert bool((table.cos[:, 8:] == 1).all()), "a quarter of 32 angles rotates"
    assert bool(table.sin[1, :8].all())


def test_gemma_has_one_table_for_each_kind_of_layer() -> None:
    config = tiny_config("gemma3-softcap", architectures=["Gemma3ForCausalLM"])
    ours = parse_decoder_config(json.loads(config.to_json_string()))
    positions = torch.arange(300)
    for rope, kind in ((ours.rope, "full_attention"), (ours.sliding_rope, "sliding_attention")):
        table = RopeTable.of(rope, ours.head_dim, 300, torch.float32, CPU)
        theirs = Gemma3RotaryEmbedding(config)(torch.empty(1), positions[None], kind)
        half = ours.head_dim // 2
        assert torch.equal(table.at(positions)[0][:, 0], theirs[0][0])
        assert torch.equal(table.at(positions)[1][:, 0, half:], theirs[1][0, :, half:])
