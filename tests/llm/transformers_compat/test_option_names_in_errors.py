"""manager_hint, request_hint and naming_given_options: messages say the option that the user gave or should give."""

from typing import Any

import pytest

from chairlift.core.errors import ConfigError, ContextLengthExceeded, InvalidRequest, UnknownOption
from chairlift.llm.transformers_compat.option_names_in_errors import (
    ENGINE_LIMITS,
    MANAGER_OPTIONS,
    OTHER_NAMES,
    REQUEST_ARGUMENTS,
    REQUEST_FIELDS,
    naming_given_options,
    with_given_names,
)
from chairlift.llm.transformers_compat.settings import request_params, resolve_settings
from support_shares import for_each

NO_TOKENIZER = "a manager has no tokenizer; use stop_token_ids, or chairlift.LLM with `stop`"


@for_each(
    ("name", "hint"),
    [
        ("max_tokens", "; did you mean 'max_new_tokens'?"), ("stop", f": {NO_TOKENIZER}"),
        ("stop_sequences", f": {NO_TOKENIZER}"), ("logprobs", "; did you mean 'return_logprobs'?"),
        ("n", "; did you mean 'num_return_sequences'?"), ("max_num_seqs", "; did you mean 'max_requests_per_batch'?"),
        ("gpu_memory_utilization", "; did you mean 'max_memory_percent'?"),
        ("streaming", "; streaming is an argument of add_request()"),
        ("stream", "; streaming is an argument of add_request()"),
        ("timeout", "; timeout is an argument of add_request()"), ("temperture", "; did you mean 'temperature'?"),
        ("xyz", ""),
    ],
)  # fmt: skip
def test_an_option_that_a_manager_does_not_have_names_the_right_one(name: str, hint: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        resolve_settings(knobs={name: 1})
    assert str(caught.value) == f"unknown option {name!r}{hint}"


@for_each(
    ("name", "hint"),
    [
        ("max_tokens", "; did you mean 'max_new_tokens'?"), ("stop", f": {NO_TOKENIZER}"),
        ("stop_strings", f": {NO_TOKENIZER}"), ("stream", "; did you mean 'streaming'?"),
        ("logprobs", "; use 'return_logprobs' of the manager"), ("n", "; use 'num_return_sequences' of the manager"),
        ("eos_token_ids", "; did you mean 'eos_token_id'?"), ("num_return_sequences", ": it is one of the manager"),
        ("max_batch_tokens", ": it is one of the manager"), ("max_running_requests", ": it is one of the manager"),
        ("suppress_tokens", ": use bad_words_ids"), ("max_time", ": use add_request(..., timeout=seconds)"),
        ("max_new_token", "; did you mean 'max_new_tokens'?"), ("xyz", ""),
    ],
)  # fmt: skip
def test_a_parameter_that_a_request_does_not_have_names_the_right_one(name: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_params(resolve_settings(), **{name: 1})
    assert str(caught.value) == f"{name} is no parameter of a request{hint}"


def test_every_name_of_another_program_leads_to_an_option_and_is_none_itself() -> None:
    known = {*MANAGER_OPTIONS, *REQUEST_FIELDS, *REQUEST_ARGUMENTS}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & known


def test_only_whole_words_outside_of_quotation_marks_are_renamed() -> None:
    given = {"max_memory": "max_memory_percent", "overlap": "use_async_batching"}
    text = "max_memory is 3, max_memory_2 and 'max_memory' and `overlap` are not; overlap: overlapped"
    assert with_given_names(text, given) == (
        "max_memory_percent is 3, max_memory_2 and 'max_memory' and `overlap` are not; use_async_batching: overlapped"
    )
    assert with_given_names(text, {}) == text


def test_an_error_keeps_its_class_and_its_numbers_and_has_the_name_that_was_given() -> None:
    message = "max_new_tokens is 9, the limit of their sum is 8"
    with pytest.raises(ContextLengthExceeded, match=message) as caught, naming_given_options(ENGINE_LIMITS):
        raise ContextLengthExceeded(5, 9, 8)
    assert caught.value.details == {"param": "prompt", "prompt_tokens": 5, "max_tokens": 9, "limit": 8}
    given = {"block_size": "page_size"}
    with pytest.raises(ConfigError, match="page_size is 5") as config, naming_given_options(given):
        raise ConfigError("block_size is 5", option="block_size")
    assert config.value.details == {"option": "page_size"}
    for error in (ConfigError("nothing to rename", option="dtype"), KeyError("block_size")):
        with pytest.raises(type(error)) as same, naming_given_options(given):
            raise error
        assert same.value is error


@pytest.mark.parametrize("given", ["min_new_tokens", "min_tokens"])
def test_a_parameter_has_the_name_by_which_the_request_or_the_manager_gave_it(given: str) -> None:
    for settings, request in (
        (resolve_settings(), {given: 5}), (resolve_settings({given: 5}), {}),
        (resolve_settings({"min_new_tokens": 4}), {given: 5}), (resolve_settings({"min_tokens": 4}), {given: 5}),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=f"^{given} is 5, more than max_new_tokens 2$") as caught:
            request_params(settings, max_new_tokens=2, **request)
        assert caught.value.details == {"param": given}


@pytest.mark.parametrize("value", [-1, "x", 2.5])
def test_an_impossible_min_new_tokens_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^min_new_tokens must be ") as caught:
        resolve_settings(knobs={"min_new_tokens": value})
    assert caught.value.details == {"option": "min_new_tokens"}
    with pytest.raises(InvalidRequest, match=r"^min_new_tokens must be "):
        request_params(resolve_settings(), min_new_tokens=value)
