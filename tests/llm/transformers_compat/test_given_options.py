"""effective_options: each option is checked under the name that the user gave, and becomes the engine's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig as Theirs

from chairlift.core.errors import ConfigError
from chairlift.llm.transformers_compat.given_options import GivenOptions, effective_options
from chairlift.llm.transformers_compat.option_table import BATCHING, GENERATION, OptionPart
from chairlift.llm.transformers_compat.settings import resolve_settings

COUNTS = (
    "page_size", "block_size", "num_blocks", "max_batch_tokens", "max_requests_per_batch", "prefill_chunk_size",
)  # fmt: skip
FLAGS = ("allow_block_sharing", "use_async_batching")


@pytest.mark.share(16)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *((name, value, f"must be between 1 and 2147483647, got {value}") for name in COUNTS for value in (0, -1)),
        *((name, "x", "must be an integer, got str") for name in COUNTS),
        *((name, 2.5, "must be an integer, got float") for name in COUNTS),
        *((name, True, "must be an integer, got bool") for name in COUNTS),
        *((name, value, f"must be true or false, got {type(value).__name__}") for name in FLAGS for value in (3, "no")),
        *(("max_memory_percent", value, f"must be greater than 0 and at most 1, got {value}") for value in (0, -1, 90)),
        ("max_memory_percent", "90%", "must be a number, got str"),
        ("max_memory", 0, "must be between 1 and 9223372036854775807, got 0"),
        ("max_memory", 1.5, "must be greater than 0 and at most 1, got 1.5"), ("max_memory", [], "must be a number"),
        ("safety_margin", "x", "must be a number, got str"), ("safety_margin", -0.5, "must be between 0 and 1"),
        ("profile", 3, "must be the path of a file, got int"), ("scheduler", [], "must be 'fifo' or 'prefill_first'"),
        ("scheduler_type", "mixed", "must be 'fifo' or 'prefill_first', got 'mixed'"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_under_the_name_that_was_given(name: str, value: Any, message: str) -> None:
    for given in (({name: value}, None, None), (None, {name: value}, None), (None, None, {name: value})):
        with pytest.raises(ConfigError) as caught:
            resolve_settings(*given)
        assert str(caught.value).startswith(f"{name} {message}")
        assert caught.value.details == {"option": name}


def test_every_option_of_the_engine_with_another_name_is_checked_here() -> None:
    renamed = {
        name for name, spec in (BATCHING | GENERATION).items() if spec.part is OptionPart.ENGINE and spec.setting
    }
    assert renamed == {name for name in renamed if (BATCHING.get(name) or GENERATION[name]).check is not None}


def test_numbers_of_numpy_and_paths_are_plain_values_in_the_engine() -> None:
    for given, plain in (
        ({"num_blocks": np.int64(8)}, 8), ({"max_memory_percent": np.float32(0.5)}, 0.5), ({"max_memory": 1}, 1),
        ({"max_memory": np.int64(9)}, 9), ({"max_memory_percent": 1}, 1.0), ({"profile": Path("t")}, "t"),
    ):  # fmt: skip
        ((value,),) = [effective_options(given, is_chosen=True).values.values()]
        assert value == plain and type(value) is type(plain)


def test_options_that_win_bring_their_names() -> None:
    given = effective_options({"page_size": 8, "num_blocks": 4}, is_chosen=True)
    assert given == GivenOptions(
        {"block_size": 8, "num_blocks": 4}, {"block_size": "page_size", "num_blocks": "num_blocks"}
    )
    given.add(effective_options({"block_size": 32}, is_chosen=True))
    assert given.values["block_size"] == 32 and given.names["block_size"] == "block_size"
    assert resolve_settings(None, Theirs(page_size=8), {"block_size": 4}).given_names == {}
    assert resolve_settings(None, {"block_size": 8}, {"page_size": 4}).given_names == {"block_size": "page_size"}


@pytest.mark.parametrize(("name", "value"), [("suppress_tokens", [1, 2]), ("top_p", 3.0), ("page_size", 0)])
def test_an_error_of_the_models_own_configuration_says_so_and_what_to_do(name: str, value: Any) -> None:
    own = GenerationConfig(**{name: value})
    remedy = ". It comes from the place: pass a generation_config without it"
    with pytest.raises(ConfigError) as caught:
        resolve_settings(own, origin="the place")
    assert str(caught.value).endswith(remedy) and str(caught.value).startswith(name)
    assert caught.value.details == {"option": name}
    for generation, knobs, origin in ((own, {}, ""), ({}, {name: value}, "the place"), (own, {name: value}, "place")):
        with pytest.raises(ConfigError) as caught:
            resolve_settings(generation, None, knobs, origin=origin)
        assert "It comes from" not in str(caught.value)


def test_an_argument_replaces_a_field_of_the_models_own_configuration_that_is_refused() -> None:
    own = GenerationConfig(suppress_tokens=[1, 2], top_p=3.0)
    assert resolve_settings(own, None, {"suppress_tokens": [], "top_p": 0.5}).sampling["top_p"] == 0.5
