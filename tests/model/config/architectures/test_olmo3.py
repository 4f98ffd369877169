"""OLMo 3: its parameters, three of four layers slide, and scaling of RoPE applies to the others."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("olmo3")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Olmo3Config", "Olmo3ForCausalLM", hidden_size=64, num_hidden_layers=9)


def test_three_of_four_layers_slide_and_are_not_scaled() -> None:
    config = config_of("olmo3", layer_types=None)
    assert config.layer_windows == (20, 20, 20, None)
    assert (config.rope.type, config.sliding_rope.type) == ("yarn", "default")
    assert config.layer_ropes == (config.sliding_rope,) * 3 + (config.rope,)
