"""Qwen3-Next: its parameters, whose projections are grouped by head, and layers without experts."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("qwen3_next")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Qwen3NextConfig", "Qwen3NextForCausalLM", hidden_size=64, num_hidden_layers=5)


def test_a_listed_layer_has_an_mlp() -> None:
    config = config_of("qwen3_next")
    assert config.dense_layers == (0,)
    assert config.experts is not None and config.experts.has_shared_gate
