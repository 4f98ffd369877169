"""SamplingParams: a model's defaults for values that are None, and checks against the vocabulary."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, TokenOutOfRange
from chairlift.core.sampling_params import MAX_TOKENS, MODEL_DEFAULTS, NEUTRAL_VALUES, SamplingParams
from support_shares import for_each

UNSET = SamplingParams(**MODEL_DEFAULTS)


def test_what_is_none_takes_the_models_default_then_the_neutral_value() -> None:
    params = replace(UNSET, top_k=7).with_defaults({"temperature": 0.6, "top_k": 50}, max_tokens=11, seed=3)
    assert (params.temperature, params.top_k) == (0.6, 7)
    assert (params.top_p, params.min_p, params.repetition_penalty) == (1.0, 0.0, 1.0)
    assert (params.max_tokens, params.seed, params.logprobs) == (11, 3, None)


@for_each("name", NEUTRAL_VALUES)
def test_a_default_of_none_counts_as_absent(name: str) -> None:
    params = UNSET.with_defaults({name: None}, max_tokens=1, seed=0)
    assert getattr(params, name) == NEUTRAL_VALUES[name]


def test_a_zero_that_was_asked_for_is_not_absent() -> None:
    explicit = SamplingParams(temperature=0, top_k=0, min_p=0.0, seed=0)
    defaults = {"temperature": 0.6, "top_k": 50, "min_p": 0.1}
    params = explicit.with_defaults(defaults, max_tokens=1, seed=9)
    assert (params.temperature, params.top_k, params.min_p, params.seed) == (0, 0, 0, 0)


def test_resolving_twice_changes_nothing_and_the_original_stays() -> None:
    original = SamplingParams(**MODEL_DEFAULTS)
    once = original.with_defaults({"top_p": 0.9}, max_tokens=5, seed=1)
    assert once.with_defaults({"top_p": 0.1, "temperature": 0.1}, max_tokens=99, seed=99) == once
    assert original == UNSET


def test_other_defaults_of_a_model_do_not_matter() -> None:
    assert UNSET.with_defaults({"do_sample": True, "stop": "x", "num_beams": 4}, max_tokens=1, seed=0).stop == ()


def test_an_impossible_default_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="temperature must be between 0 and 2, got 3"):
        UNSET.with_defaults({"temperature": 3}, max_tokens=1, seed=0)


def test_more_min_tokens_than_fit_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 10, more than max_tokens 9"):
        replace(UNSET, min_tokens=10).with_defaults({}, max_tokens=9, seed=0)


@pytest.mark.parametrize(
    "explicit",
    [
        {"stop_token_ids": (3, 304)}, {"logit_bias": {304: 1.0, 2: 1.0}}, {"allowed_token_ids": (0, 304)},
        {"bad_words_ids": ((5,), (3, 304, 7))},
    ],
)  # fmt: skip
def test_ids_are_checked_against_the_vocabulary(explicit: dict[str, Any]) -> None:
    params = SamplingParams(**explicit)
    params.check_vocabulary(305)
    with pytest.raises(TokenOutOfRange, match="304 is outside the vocabulary, which has 304") as caught:
        params.check_vocabulary(304)
    assert caught.value.details == {"param": next(iter(explicit)), "token_id": 304, "vocab_size": 304}


def test_plain_parameters_fit_any_vocabulary() -> None:
    SamplingParams(top_k=MAX_TOKENS).check_vocabulary(1)
