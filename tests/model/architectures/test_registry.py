"""architecture_module: every architecture that a config may name has one; the error of another lists them."""

import pytest

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.architectures.registry import ARCHITECTURES, architecture_module
from chairlift.model.config.decoder_config import DEFAULTS


def test_every_architecture_that_a_config_may_name_has_a_module() -> None:
    assert ARCHITECTURES.keys() == DEFAULTS.keys()
    for architecture in ARCHITECTURES:
        assert callable(architecture_module(architecture).build)


def test_an_unknown_architecture_ends_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedArchitecture, match="FooForCausalLM is not supported; supported are LlamaForCausalLM"
    ):
        architecture_module("FooForCausalLM")
