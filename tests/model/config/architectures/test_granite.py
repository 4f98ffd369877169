"""Granite 3: its parameters and its four multipliers."""

import pytest

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("granite")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("GraniteConfig", "GraniteForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_the_multipliers_are_those_of_the_config() -> None:
    config = config_of("granite")
    assert (config.embed_scale, config.logits_divisor) == (3.0, 0.7)
    assert (config.residual_multiplier, config.attention_scale) == (0.6, 0.2)


def test_a_multiplier_that_no_float32_divides_by_is_left_to_transformers() -> None:
    with pytest.raises(UnsupportedArchitecture, match="residual_multiplier 1e-30 is not supported"):
        config_of("granite", residual_multiplier=1e-30)


def test_a_multiplier_of_zero_is_named() -> None:
    with pytest.raises(ModelError, match="residual_multiplier must be a finite number above 0"):
        config_of("granite", residual_multiplier=0.0)
