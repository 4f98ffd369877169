"""SmolLM3: its parameters, layers that do not rotate, and windows in these."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from support_architectures import assert_defaults, assert_parameters, config_of


@pytest.mark.parametrize("kind", ["smollm3", "smollm3-sliding"])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    assert_parameters(kind)


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    assert_defaults("SmolLM3Config", "SmolLM3ForCausalLM", hidden_size=64, num_hidden_layers=9)


def test_layers_without_rotation_are_listed_or_every_fourth_one() -> None:
    config = config_of("smollm3", no_rope_layers=None, no_rope_layer_interval=4)
    assert config.unrotated_layers == (3,)
    assert config.layer_ropes == (config.rope,) * 3 + (None,)
    assert config_of("smollm3", no_rope_layers=[0, 1, 1, 0]).unrotated_layers == (0, 3)
    assert config_of("smollm3", no_rope_layers=[0, 1, 1, 1, 0]).unrotated_layers == (0,)


def test_windows_are_in_the_layers_that_do_not_rotate_unless_layer_types_says_so() -> None:
    assert config_of("smollm3-sliding", layer_types=None).layer_windows == (None, 20, None)
    assert config_of("smollm3-sliding", use_sliding_window=False).layer_windows == (None,) * 3


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([1, 0], "no_rope_layers has 2 entries, num_hidden_layers is 4"),
        ([1, 0, 2, 1], "no_rope_layers must be a list of 0 and 1"),
        ("1011", "no_rope_layers must be a list of 0 and 1"),
    ],
)
def test_a_wrong_list_is_named(layers: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        config_of("smollm3", no_rope_layers=layers)
