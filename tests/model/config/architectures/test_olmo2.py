"""OLMo 2: its parameters, without norms before attention and MLP."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("olmo2")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Olmo2Config", "Olmo2ForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_a_layer_has_norms_after_attention_and_mlp_only() -> None:
    norms = config_of("olmo2").norms
    assert (norms.before_attention, norms.before_mlp, norms.count) == (None, None, 2)
