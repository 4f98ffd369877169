"""GLM-4: its parameters, half of a head that rotates by neighbours, and the ends of its turns."""

from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("glm4")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Glm4Config", "Glm4ForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_neighbours_rotate_together_in_half_of_a_head() -> None:
    rope = config_of("glm4", head_dim=8).rope
    assert (rope.rotary_dim, rope.is_interleaved) == (4, True)
    assert rope.row_order(8) == (0, 2, 4, 5, 1, 3, 6, 7)


def test_biases_are_on_query_key_and_value_only() -> None:
    config = config_of("glm4", attention_bias=True)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
