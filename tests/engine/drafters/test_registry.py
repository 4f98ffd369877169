"""make_drafters: the drafters of each method."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.config import OFF_METHOD, SpeculationConfig
from chairlift.engine.drafters.registry import METHODS, make_drafters


def test_each_method_is_made() -> None:
    for method in METHODS:
        drafters = make_drafters(SpeculationConfig(method=method))
        assert all(drafter.name for drafter in drafters) and bool(drafters) == (method != OFF_METHOD)
    assert tuple(METHODS) == ("auto", "ngram", "suffix", "prediction", "draft_model", "none")


def test_memory_for_outputs_that_does_not_exist_is_an_error_of_the_option() -> None:
    with pytest.raises(ConfigError, match="no memory for suffix_max_bytes"):
        make_drafters(SpeculationConfig(method="suffix", suffix_max_bytes=10**18))


def test_an_unknown_method_names_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"unknown method 'eagle' of speculation; available are .*none"):
        make_drafters(SpeculationConfig(method="eagle"))
