"""Qwen3-MoE: its parameters, and layers without experts."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("qwen3_moe")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Qwen3MoeConfig", "Qwen3MoeForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_a_window_is_in_all_layers_whatever_max_window_layers_says() -> None:
    config = config_of("qwen3_moe", use_sliding_window=True, sliding_window=9, max_window_layers=28)
    assert config.layer_windows == (9,) * 3
    assert config_of("qwen3_moe", sliding_window=9).layer_windows == (None,) * 3


def test_some_layers_have_an_mlp() -> None:
    config = config_of("qwen3_moe")
    assert [config.experts_of(layer) is None for layer in range(3)] == [False, True, False]
    assert config.mlp_width == 96
    assert config_of("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[]).dense_layers == (0, 2)
