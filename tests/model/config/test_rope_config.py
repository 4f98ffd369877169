"""RopeConfig: which field of which config format is used."""

from typing import Any

import pytest
from transformers import LlamaConfig

from chairlift.core.errors import ModelError
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.rope_config import RopeConfig, read_ropes


def read(**content: Any) -> RopeConfig:
    full, sliding = read_ropes(ConfigReader(content, {"rope_theta": 1e4}), 2048, by_layer_type=False)
    assert full == sliding
    return full


def test_nothing_said_is_the_plain_rotation() -> None:
    assert read() == RopeConfig(type="default", theta=1e4)
    assert read(rope_scaling=None, rope_theta=5e5) == RopeConfig(theta=5e5)


def test_the_type_has_two_spellings_and_the_newer_one_wins() -> None:
    assert read(rope_scaling={"type": "linear", "factor": 2}).type == "linear"
    assert read(rope_scaling={"type": "mrope", "rope_type": "default"}).type == "default"


def test_theta_inside_the_parameters_wins() -> None:
    assert read(rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 7.0}).theta == 7.0


def test_the_older_spelling_wins_where_both_are_written_as_in_transformers() -> None:
    old, new = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    theirs = LlamaConfig(rope_scaling=dict(old), rope_parameters=dict(new)).rope_parameters
    assert read(rope_scaling=old, rope_parameters=new).factor == theirs["factor"] == 2.0


def test_an_original_length_beside_the_rope_object_wins() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read(rope_scaling=yarn).original_length == 512
    assert read(rope_scaling=yarn, original_max_position_embeddings=256).original_length == 256
    assert read(rope_scaling={"rope_type": "yarn", "factor": 4.0}).original_length == 2048


def test_yarn_without_a_factor_takes_the_ratio_of_lengths() -> None:
    yarn = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512}
    assert read(rope_parameters=yarn).factor == 4.0


def test_scaling_of_gemma_is_for_full_layers() -> None:
    fields = ConfigReader(
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    )
    full, sliding = read_ropes(fields, 2048, by_layer_type=True)
    assert full == RopeConfig(type="linear", theta=1e6, factor=8.0, original_length=2048)
    assert sliding == RopeConfig(theta=1e4)


def test_a_part_that_is_no_object_is_named() -> None:
    fields = ConfigReader({"rope_parameters": {"full_attention": 3}}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4})
    with pytest.raises(ModelError, match=r"rope_parameters\.full_attention must be an object"):
        read_ropes(fields, 2048, by_layer_type=True)
