"""Mixtral: its parameters, and a window in all layers or in none."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("mixtral")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("MixtralConfig", "MixtralForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_the_window_is_in_all_layers_or_in_none() -> None:
    assert config_of("mixtral").layer_windows == (20,) * 3
    assert config_of("mixtral", sliding_window=None).layer_windows == (None,) * 3
