"""OLMoE: its parameters, and a limit on queries that only transformers has."""

import pytest

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.decoder_config import PROJECTION
from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("olmoe")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("OlmoeConfig", "OlmoeForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_a_limit_on_queries_is_left_to_transformers() -> None:
    assert config_of("olmoe").head_norm == PROJECTION
    with pytest.raises(UnsupportedArchitecture, match="clip_qkv is not supported"):
        config_of("olmoe", clip_qkv=8.0)
