"""read_options: each option with its own name, its bounds, and what none of the OpenAI API's fields does."""

from typing import Any

import jsonschema
import pytest
from ollama import Options

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.ollama.options import NUM_PREDICT, OPTION_NAMES, OPTIONS, SAMPLING_OPTIONS, read_options
from chairlift.protocol.request_fields import CHAT, COMPLETION
from support_shares import for_each


def test_options_become_fields() -> None:
    ignored: list[str] = []
    options = {
        "temperature": 0.5, "top_p": 1, "top_k": 20, "min_p": 0.1, "typical_p": 0.9, "seed": 7, "stop": "x",
        "repeat_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 2, "num_predict": 5, "num_ctx": 4096,
        "mirostat": None,
    }  # fmt: skip
    assert read_options(options, ignored) == {
        "temperature": 0.5, "top_p": 1.0, "top_k": 20, "min_p": 0.1, "typical_p": 0.9, "seed": 7, "stop": ["x"],
        "repetition_penalty": 1.1, "presence_penalty": -1.0, "frequency_penalty": 2.0, "max_tokens": 5,
    }  # fmt: skip
    assert ignored == ["options.num_ctx"] and read_options(None, ignored) == {}


@pytest.mark.parametrize("limit", [-2, -1, 0])
def test_no_limit_of_the_output(limit: int) -> None:
    assert read_options({"num_predict": limit}, []) == {}


def test_numbers_without_a_fraction_are_integers() -> None:
    read = read_options({"num_predict": 3.0, "top_k": 40.0, "seed": 1.0}, [])
    assert read == {"max_tokens": 3, "top_k": 40, "seed": 1} and all(type(value) is int for value in read.values())
    with pytest.raises(InvalidRequest, match=r"^options\.num_predict must be an integer"):
        read_options({"num_predict": 3.5}, [])


def test_the_seed_that_is_none() -> None:
    assert read_options({"seed": -1}, []) == {} and read_options({"seed": -2}, []) == {"seed": -2}


BAD: list[tuple[Any, str]] = [
    (7, "options"), ([], "options"), ({"temperature": 2.1}, "options.temperature"),
    ({"temperature": "hot"}, "options.temperature"), ({"top_k": 1.5}, "options.top_k"),
    ({"top_k": -2}, "options.top_k"),
    ({"seed": 2**63}, "options.seed"), ({"stop": [""]}, "options.stop"), ({"stop": 7}, "options.stop"),
    ({"stop": ["a"] * 65}, "options.stop"), ({"num_predict": -3}, "options.num_predict"),
    ({"num_predict": True}, "options.num_predict"), ({"repeat_penalty": 0}, "options.repeat_penalty"),
]  # fmt: skip


@for_each(("options", "param"), BAD)
def test_an_error_names_the_option(options: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_options(options, [])
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)
    if options != {"top_k": 1.5}:
        assert not jsonschema.Draft202012Validator(OPTIONS).is_valid(options)


def test_every_option_is_one_of_the_client_and_of_the_openai_api() -> None:
    own = {"min_p"}  # newer than the client's type, which allows any option
    assert {*SAMPLING_OPTIONS, NUM_PREDICT} - Options.model_fields.keys() == own
    assert set(SAMPLING_OPTIONS.values()) <= CHAT.keys() & COMPLETION.keys()
    assert all(OPTION_NAMES[inner] == f"options.{name}" for name, inner in SAMPLING_OPTIONS.items())
