"""LFM2: its parameters under their own names, layers with convolutions, and the size of the MLP."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from support_architectures import assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("lfm2")


def test_layers_with_attention_are_listed_by_number_or_kind() -> None:
    config = config_of("lfm2")
    assert [config.state_of(layer) is None for layer in range(4)] == [False, True, False, False]
    assert config_of("lfm2", layer_types=None, full_attn_idxs=[0, 3]).layer_windows == (None, None)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"block_auto_adjust_ff_dim": False}, 96),
        ({"block_auto_adjust_ff_dim": True}, 256),
        ({"block_auto_adjust_ff_dim": True, "block_multiple_of": 10, "block_ffn_dim_multiplier": 1.5}, 100),
        ({"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": None}, 64),
        ({"block_auto_adjust_ff_dim": False, "block_ff_dim": 80}, 80),
    ],
)
def test_the_size_of_the_mlp_follows_from_four_fields(fields: dict[str, Any], size: int) -> None:
    assert config_of("lfm2", **fields).intermediate_size == size


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layer_types": None, "full_attn_idxs": 5}, "full_attn_idxs must be a list of integers"),
        ({"layer_types": None, "full_attn_idxs": ["1"]}, "full_attn_idxs must be an integer"),
        ({"layer_types": None, "full_attn_idxs": [1, 99]}, "full_attn_idxs has 99, but there are 4"),
        (
            {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1e308},
            "block_ffn_dim_multiplier makes an MLP of",
        ),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        config_of("lfm2", **fields)


def test_the_old_name_of_the_tie_counts() -> None:
    assert not config_of("lfm2", tie_embedding=False).tie_word_embeddings
