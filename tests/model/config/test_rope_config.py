"""RopeConfig: which field of which config format is used."""

from typing import Any

import pytest
from transformers import LlamaConfig

from chairlift.core.errors import ModelError, UnsupportedArchitecture
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


UNIFORM: dict[str, Any] = {
    "rope_type": "longrope", "short_factor": [1.0, 2], "long_factor": [1, 2.0], "attention_factor": 1.0, "factor": 1.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def test_longrope_of_equal_factors_is_one_rotation_for_every_length() -> None:
    expected = RopeConfig(type="longrope", theta=1e4, divisors=(1.0, 2.0), attention_factor=1.0)
    assert read(rope_scaling=UNIFORM) == expected
    assert read(rope_scaling={**UNIFORM, "rope_type": "su"}) == expected


@pytest.mark.parametrize(
    "changes",
    [{"long_factor": [1.0, 3.0]}, {"long_factor": None}, {"short_factor": []}, {"attention_factor": None},
     {"short_factor": "ab", "long_factor": "ab"}, {"short_factor": [], "long_factor": []}],
)  # fmt: skip
def test_another_longrope_is_left_to_transformers(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="rope_type 'longrope' is not supported"):
        read(rope_scaling={**UNIFORM, **changes})


@pytest.mark.parametrize("factor", ["1", None, 0.0, -1.0, True, float("inf")])
def test_a_factor_of_longrope_is_a_number_above_0(factor: Any) -> None:
    with pytest.raises(ModelError, match=r"config\.json: short_factor "):
        read(rope_scaling={**UNIFORM, "short_factor": [1.0, factor], "long_factor": [1.0, factor]})


def test_longrope_of_a_part_of_the_dimensions_is_left_to_transformers() -> None:
    with pytest.raises(UnsupportedArchitecture, match="partial_rotary_factor is not supported"):
        read(rope_scaling={**UNIFORM, "partial_rotary_factor": 0.5})


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


def test_proportional_says_which_share_of_the_angles_rotates() -> None:
    quarter = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    assert read(rope_parameters=quarter) == RopeConfig(type="proportional", theta=1e6, rotated_share=0.25)
    assert read(rope_parameters={**quarter, "factor": 4.0}).factor == 4.0
    assert read(rope_parameters={"rope_type": "proportional"}).rotated_share == 1.0
    with pytest.raises(ModelError, match=r"must be at most 1 for proportional, got 1\.5"):
        read(rope_parameters={**quarter, "partial_rotary_factor": 1.5})


def test_proportional_is_left_to_transformers_where_a_part_of_a_head_rotates() -> None:
    fields = ConfigReader({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, {})
    with pytest.raises(UnsupportedArchitecture, match="rope_type 'proportional' is not supported in this architecture"):
        read_ropes(fields, 2048, by_layer_type=False, head_dim=64)
