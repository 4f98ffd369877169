"""Phi-3 and Phi-4: joined projections, a part of each head that rotates, and two lists of factors by length."""

import math
from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from support_architectures import assert_defaults, assert_parameters, config_of


@pytest.mark.parametrize("kind", ["phi3", "phi3-partial"])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    assert_parameters(kind)


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Phi3Config", "Phi3ForCausalLM", hidden_size=64, num_hidden_layers=2, num_attention_heads=4)


def test_a_longer_engine_has_the_long_factors() -> None:
    short, long = [1.0] * 9, [4.0] * 9
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "short_factor": short,
        "long_factor": long,
    }  # fmt: skip
    config = config_of("phi3-partial", rope_parameters=rope, original_max_position_embeddings=256)
    assert config.rope.rotary_dim == 18
    assert config.context_length() == 256
    assert config.context_length(1000) == 1000
    assert config.rope.for_length(256).divisors == tuple(short)
    assert config.rope.for_length(257).divisors == tuple(long)
    assert config.rope.attention_factor == pytest.approx((1 + math.log(4) / math.log(256)) ** 0.5)


def test_yarn_and_su_are_old_names_of_longrope_and_others_are_left_to_transformers() -> None:
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 0.75, "short_factor": [1.0] * 9, "long_factor": [2.0] * 9}
    for name in ("yarn", "su"):
        assert config_of("phi3-partial", rope_parameters={**rope, "rope_type": name}).rope.type == "longrope"
    with pytest.raises(UnsupportedArchitecture, match="rope_type 'linear' is not supported"):
        config_of("phi3-partial", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"short_factor": [1.0] * 8, "long_factor": [1.0] * 9}, "RoPE has 8 factors for 9 frequencies"),
        ({"short_factor": [1.0] * 9, "long_factor": 4}, "long_factor must be a list of numbers"),
        ({"short_factor": [1.0] * 8 + [0], "long_factor": [1.0] * 9}, "short_factor must be a finite number above 0"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor 0.01 of head_dim 24 is no even number up to it"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 of head_dim 24 is no even number up to it"),
    ],
)
def test_a_wrong_rotation_is_named(rope: dict[str, Any], said: str) -> None:
    base = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    with pytest.raises(ModelError, match=said):
        config_of("phi3-partial", rope_parameters={**base, **rope})
