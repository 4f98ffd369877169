"""Gemma 2: its parameters, windows by turns, and the caps that a null takes away."""

import pytest

from chairlift.core.errors import ModelError
from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("gemma2")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Gemma2Config", "Gemma2ForCausalLM", hidden_size=64, num_hidden_layers=5)


def test_every_second_layer_slides_from_the_first_on() -> None:
    assert config_of("gemma2", layer_types=None).layer_windows == (20, None, 20, None)


def test_a_cap_that_is_null_is_no_cap() -> None:
    assert (config_of("gemma2").attention_softcap, config_of("gemma2").final_softcap) == (5.0, 8.0)
    plain = config_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (plain.attention_softcap, plain.final_softcap) == (None, None)


def test_attention_in_both_directions_is_refused() -> None:
    with pytest.raises(ModelError, match="use_bidirectional_attention is not supported"):
        config_of("gemma2", use_bidirectional_attention=True)
