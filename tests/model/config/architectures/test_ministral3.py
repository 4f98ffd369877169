"""Ministral 3: its parameters, the factor on queries, and the wrapper of this and of older text models."""

import math
from typing import Any

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import QueryScaling
from chairlift.model.layers.rope import query_scales
from support_architectures import assert_defaults, assert_parameters, config_of


def test_parameters_are_those_of_transformers() -> None:
    assert_parameters("ministral3")


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("Ministral3Config", "Ministral3ForCausalLM", hidden_size=64, num_hidden_layers=2)


def test_the_factor_on_queries_grows_with_each_original_length() -> None:
    config = config_of("ministral3")
    assert config.query_scaling == QueryScaling(beta=0.3, length=16)
    scales = query_scales(config.query_scaling, 33, torch.float64, torch.device("cpu"))
    assert scales[:16].tolist() == [1.0] * 16
    assert scales[16].item() == pytest.approx(1 + 0.3 * math.log(2))
    assert scales[32].item() == pytest.approx(1 + 0.3 * math.log(3))


def test_a_config_without_the_factor_is_refused_by_its_name() -> None:
    with pytest.raises(ModelError, match="llama_4_scaling_beta is missing"):
        config_of("ministral3", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})


def test_the_wrapper_has_the_text_model_that_its_text_config_names() -> None:
    sizes = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    wrapper: dict[str, Any] = {"architectures": ["Mistral3ForConditionalGeneration"], "vision_config": {}}
    new = parse_decoder_config({**wrapper, "text_config": {**sizes, "model_type": "ministral3"}})
    old = parse_decoder_config({**wrapper, "text_config": {**sizes, "model_type": "mistral", "sliding_window": None}})
    assert new.query_scaling == QueryScaling(beta=0.1, length=16384)
    assert new.rope.type == "yarn"
    assert (old.query_scaling, old.rope.type, old.max_position_embeddings) == (None, "default", 131072)
