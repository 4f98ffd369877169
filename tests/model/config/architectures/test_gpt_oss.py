"""gpt-oss: its parameters, windows by turns, and YaRN without rounded bounds."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("gpt_oss")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("GptOssConfig", "GptOssForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_every_second_layer_slides_from_the_first_on() -> None:
    assert config_of("gpt_oss", layer_types=None).layer_windows == (20, None, 20, None)


def test_heads_have_sinks_and_yarn_has_exact_bounds() -> None:
    config = config_of("gpt_oss")
    assert config.has_sinks
    assert (config.rope.type, config.rope.truncate, config.rope.theta) == ("yarn", False, 150000.0)
