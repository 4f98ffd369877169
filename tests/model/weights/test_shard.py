"""The part of each parameter that a rank reads, and the models that ranks cannot share."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.transformers_config import parse_transformers_config
from chairlift.model.loading.tiny_model import tiny_config
from chairlift.model.weights.shard import Shard, check_shards
from support_architectures import config_of
from support_shares import for_each

LAYER = "model.layers.3."


@for_each(("name", "whole", "own", "rank", "part"), [
    ("self_attn.q_proj.weight", (32, 8), (16, 8), 1, (slice(16, 32), slice(0, 8))),
    ("self_attn.q_proj.bias", (32,), (16,), 0, (slice(0, 16),)),
    ("self_attn.o_proj.weight", (8, 32), (8, 16), 1, (slice(0, 8), slice(16, 32))),
    ("self_attn.o_proj.bias", (8,), (8,), 0, (slice(0, 8),)),
    ("self_attn.o_proj.bias", (8,), (8,), 1, (slice(0, 0),)),
    ("mlp.down_proj.bias", (8,), (8,), 1, (slice(0, 0),)),
    ("mlp.gate_proj.bias", (12,), (6,), 1, (slice(6, 12),)),
    ("mlp.down_proj.weight", (8, 12), (8, 6), 0, (slice(0, 8), slice(0, 6))),
    ("self_attn.q_norm.weight", (16,), (16,), 1, (slice(0, 16),)),
])  # fmt: skip
def test_a_part_of_a_layer(
    name: str, whole: tuple[int, ...], own: tuple[int, ...], rank: int, part: tuple[slice, ...]
) -> None:
    assert Shard(rank, 2).part(LAYER + name, whole, own) == part


def test_ranks_share_a_key_head_where_there_are_fewer_heads_than_ranks() -> None:
    parts = [Shard(rank, 4).part(f"{LAYER}self_attn.k_proj.weight", (32, 8), (16, 8))[0] for rank in range(4)]
    assert parts == [slice(0, 16), slice(0, 16), slice(16, 32), slice(16, 32)]
    assert Shard(3, 4).part(f"{LAYER}self_attn.v_proj.bias", (16,), (16,)) == (slice(0, 16),)


def test_the_last_ranks_have_less_of_a_vocabulary_that_is_not_divisible() -> None:
    parts = [Shard(rank, 4).part("lm_head.weight", (5, 8), (2, 8))[0] for rank in range(4)]
    assert parts == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 5)]
    assert Shard(1, 2).part("model.embed_tokens.weight", (5, 8), (3, 8))[0] == slice(3, 5)


def test_the_sizes_of_a_part() -> None:
    own = Shard(1, 4).config(tiny_config())
    assert (own.num_heads, own.num_kv_heads, own.intermediate_size, own.vocab_size) == (1, 1, 32, 65)
    assert (own.head_dim, own.hidden_size, own.attention_scale) == (16, 64, 0.25)
    assert Shard(0, 1).config(tiny_config()) == tiny_config()
    assert Shard(1, 4).step_sizes(tiny_config()) == replace(own, vocab_size=259), "each rank has all logits"


def test_each_kind_of_layer_shares_its_own_heads() -> None:
    whole = replace(tiny_config(), layer_shapes=(AttentionShape(4, 16), AttentionShape(2, 32)))
    own = Shard(3, 4).config(whole)
    assert own.layer_shapes == (AttentionShape(1, 16), AttentionShape(1, 32))
    check_shards(whole, 4)
    assert (whole.layer_groups.page_width, own.layer_groups.page_width) == (64, 32)


@pytest.mark.parametrize(("num_ranks", "fields", "reason"), [
    (3, {}, "4 query heads cannot be shared evenly"),
    (8, {}, "4 query heads"),
    (4, {"num_heads": 12, "num_kv_heads": 6}, "6 key/value heads"),
    (2, {"intermediate_size": 129}, "129 neurons of the MLP"),
    (4, {"num_heads": 12, "layer_shapes": (AttentionShape(2, 16), AttentionShape(6, 8))}, "6 key/value heads"),
])  # fmt: skip
def test_sizes_that_ranks_cannot_share_evenly_are_refused(num_ranks: int, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"tensor_parallel_size is {num_ranks}.*{reason}") as caught:
        check_shards(replace(tiny_config(), **fields), num_ranks)
    assert caught.value.details["option"] == "tensor_parallel_size"


def test_sizes_that_ranks_share() -> None:
    check_shards(tiny_config(), 4)
    check_shards(replace(tiny_config(), vocab_size=7), 2)


def test_a_model_of_transformers_runs_on_one_rank() -> None:
    model = parse_transformers_config({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 99, "n_embd": 32, "n_layer": 2,
        "n_head": 4, "n_positions": 64,
    })  # fmt: skip
    check_shards(model, 1)
    with pytest.raises(ConfigError, match="GPT2LMHeadModel is computed by transformers' modules"):
        check_shards(model, 2)


@pytest.mark.parametrize("kind", ["gemma4", "gemma4_dense", "gemma4_moe"])
def test_a_model_whose_layers_have_scalars_runs_on_one_rank(kind: str) -> None:
    check_shards(config_of(kind), 1)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 2, but Gemma4ForCausalLM has .* run on one rank"):
        check_shards(config_of(kind), 2)
