"""Qwen3.5 and 3.6: parameters of both kinds, which layers keep a state, and the gate beside each query head."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.architectures.qwen3_5 import gated_query_source
from chairlift.model.weights.formats.safetensors import canonical_name
from support_architectures import assert_defaults, assert_parameters, config_of


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    assert_parameters(kind)


@pytest.mark.parametrize("name", ["Qwen3_5", "Qwen3_5Moe"])
def test_what_config_json_leaves_out_is_what_transformers_takes(name: str) -> None:
    assert_defaults(f"{name}TextConfig", f"{name}ForCausalLM", hidden_size=64, num_hidden_layers=5)


def test_three_of_four_layers_keep_a_state_and_a_quarter_of_a_head_rotates() -> None:
    config = config_of("qwen3_5", layer_types=None)
    assert [config.state_of(layer) is not None for layer in range(4)] == [True, True, True, False]
    assert config.layer_windows == (None,)
    assert config.layer_ropes == (None, None, None, config.rope)
    assert (config.rope.rotary_dim, config.head_dim) == (8, 32)
    assert len(config.state_shapes) == 3


def test_a_query_head_is_followed_by_its_gate_in_the_checkpoint() -> None:
    config = config_of("qwen3_5")
    query, gate = (gated_query_source(config, f"model.layers.2.self_attn.{name}_proj.weight") for name in ("q", "gate"))
    assert query is not None and gate is not None
    assert query.name == gate.name == "model.layers.2.self_attn.q_proj.weight"
    assert query.rows is not None and gate.rows is not None
    assert (list(query.rows[:33]), list(gate.rows[:33])) == ([*range(32), 64], [*range(32, 64), 96])
    assert gated_query_source(config, "model.layers.2.self_attn.k_proj.weight") is None


def test_the_wrapper_has_the_text_model_and_its_images_are_left_out() -> None:
    inner = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    wrapper = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {}, "text_config": inner}
    assert parse_decoder_config(wrapper).num_layers == 4
    names = ("model.visual.blocks.0.norm1.weight", "model.language_model.layers.0.mlp.up_proj.weight")
    found = [canonical_name(name, "Qwen3_5ForConditionalGeneration") for name in names]
    assert found == [None, "model.layers.0.mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, num_hidden_layers is 4"),
        ({"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ({"layer_types": ["linear_attention"] * 4}, "no layer with attention"),
        ({"linear_num_value_heads": 3}, "3 value heads cannot be shared evenly by 2 key heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be between 1 and"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        config_of("qwen3_5", **fields)
