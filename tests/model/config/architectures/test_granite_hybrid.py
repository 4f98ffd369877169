"""Granite 4: parameters with and without experts, old names of layers, and limits of the time step."""

import math
from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.state_layers import Mamba2Config
from support_architectures import assert_parameters, config_of


@pytest.mark.parametrize("kind", ["granite_hybrid", "granite_hybrid_moe"])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    assert_parameters(kind)


def test_layers_have_older_names_too() -> None:
    config = config_of("granite_hybrid", layer_types=None, layers_block_type=["mamba", "attention", "mamba"])
    assert [config.state_of(layer) is None for layer in range(3)] == [False, True, False]
    assert config.layer_ropes == (None, None, None)
    rotated = config_of("granite_hybrid", position_embedding_type="rope")
    assert rotated.layer_ropes == (None, rotated.rope, None)


def test_infinity_is_an_object_in_files_of_transformers() -> None:
    state = config_of("granite_hybrid", time_step_limit=[0.001, {"__float__": "Infinity"}]).state_of(0)
    assert isinstance(state, Mamba2Config)
    assert (state.min_dt, state.max_dt) == (0.001, math.inf)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time_step_limit": [1.0]}, "time_step_limit must be a list of two numbers"),
        ({"time_step_limit": [2.0, 1.0]}, "time_step_limit must be a list of two numbers"),
        ({"time_step_limit": {"a": 1}}, "time_step_limit must be a list of two numbers"),
        ({"mamba_d_head": 24}, "8 heads of 24 are not mamba_expand times hidden_size, 128"),
        ({"layer_types": ["linear_attention"] * 3}, "no layer with attention"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        config_of("granite_hybrid", **fields)


def test_another_kind_of_positions_is_left_to_transformers() -> None:
    with pytest.raises(UnsupportedArchitecture, match="position_embedding_type 'alibi' is not supported"):
        config_of("granite_hybrid", position_embedding_type="alibi")
