"""Fields: the tables name real parameters, their schemas are valid, and both allow the same at every bound."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling import (
    FLOAT_BOUNDS,
    INT_BOUNDS,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGITS_PROCESSORS,
    MAX_LOGPROBS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
    SAMPLING_FIELDS,
    SamplingParams,
)
from chairlift.core.structured_output import STRUCTURED_FIELDS
from chairlift.llm.text_service import MAX_TENANT_CHARS
from chairlift.protocol.request_fields import (
    CHAT,
    COMPLETION,
    DETOKENIZE,
    MAX_CHAT_LOGPROBS,
    MAX_COMPLETION_LOGPROBS,
    MAX_SALT_CHARS,
    MAX_STOPS,
    TOKENIZE,
    Effect,
    Field,
)

TABLES = {"chat": CHAT, "completion": COMPLETION}
EVERY = {**TABLES, "tokenize": TOKENIZE, "detokenize": DETOKENIZE}
ALL = [(route, name) for route, table in EVERY.items() for name in table]
SAMPLED = sorted({(name, route) for route, table in TABLES.items() for name in table if table[name].sampling})

ELSEWHERE = {
    "logprobs": "a flag and top_logprobs in chats; a number in completions, with bounds of its own",
    "echo": "of completions alone, where it decides what logprobs mean",
    "structured": "response_format, regex, grammar, choice and tool_choice",
}
"""Of SamplingParams: what a request says in another way."""

NEVER = {
    "bad_words_ids": "made of bad_words",
    "prompt_logprobs": "echo with logprobs of /v1/completions; refused by name",
}
"""Of SamplingParams: what no request says."""


def fits(field: Field, value: Any) -> bool:
    return Draft202012Validator(field.schema).is_valid(json.loads(json.dumps(value)))


def is_taken(name: str, value: Any) -> bool:
    try:
        SamplingParams(**{name: value})
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize(("route", "name"), ALL)
def test_every_schema_is_valid_and_every_field_says_what_it_is(route: str, name: str) -> None:
    field = EVERY[route][name]
    Draft202012Validator.check_schema(field.schema)
    assert field.help and "\n" not in field.help and name.replace("_", "").isalnum() and name.islower()
    assert not field.required or field.effect is Effect.USED
    if field.effect is Effect.REFUSED:
        assert fits(field, None) and not any(fits(field, value) for value in ("", 0, False, {}, []))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_field_of_sampling_is_one_of_its_parameters_and_used(table: Mapping[str, Field]) -> None:
    sampled = {name for name, field in table.items() if field.sampling}
    assert sampled <= set(SAMPLING_FIELDS)
    assert all(table[name].effect is Effect.USED for name in sampled)
    assert not sampled & (ELSEWHERE.keys() | NEVER.keys())


def test_every_parameter_can_be_said_or_is_left_out_on_purpose() -> None:
    said = {name for table in TABLES.values() for name, field in table.items() if field.sampling}
    assert said | ELSEWHERE.keys() | NEVER.keys() == set(SAMPLING_FIELDS)
    for name in ("logprobs", "echo"):
        assert COMPLETION[name].effect is Effect.USED
    assert all(name in CHAT and name in COMPLETION for name in STRUCTURED_FIELDS if not name.startswith("json"))
    kinds: set[str] = set()
    for form in CHAT["response_format"].schema["anyOf"]:
        type_schema = form["properties"]["type"]
        kinds |= set(type_schema["enum"] if "enum" in type_schema else [type_schema["const"]])
    assert kinds == {"text"} | {name for name in STRUCTURED_FIELDS if name.startswith("json")}
    assert "bad_words_ids" not in CHAT | COMPLETION
    assert CHAT["prompt_logprobs"].effect is COMPLETION["prompt_logprobs"].effect is Effect.REFUSED


def test_both_routes_mean_the_same_by_the_same_sampling_field() -> None:
    for name in CHAT.keys() & COMPLETION.keys() - {"max_tokens"}:
        if CHAT[name].sampling:
            assert CHAT[name] == COMPLETION[name], name


@pytest.mark.parametrize(("name", "route"), [each for each in SAMPLED if each[0] in FLOAT_BOUNDS])
def test_numbers_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    low, high, _ = FLOAT_BOUNDS[name]
    tiny = 1e-9
    for value in (low, high, low - tiny, high + tiny, low + tiny, high - tiny, (low + high) / 2, True, "1", [1.0]):
        assert fits(TABLES[route][name], value) == is_taken(name, value), value
    assert fits(TABLES[route][name], high) and not fits(TABLES[route][name], high + tiny)


@pytest.mark.parametrize(("name", "route"), [each for each in SAMPLED if each[0] in INT_BOUNDS])
def test_integers_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    low, high = INT_BOUNDS[name]
    for value in {low - 1, low, low + 1, 1, high, high + 1, 1.5, "1"} - ({0} if name == "max_tokens" else set()):
        assert fits(TABLES[route][name], value) == is_taken(name, value), value
    assert fits(TABLES[route][name], high) and not fits(TABLES[route][name], high + 1)


def test_no_output_at_all_can_be_asked_for_only_where_a_prompt_can_be_echoed() -> None:
    assert not is_taken("max_tokens", 0) and SamplingParams(max_tokens=0, echo=True)
    assert fits(COMPLETION["max_tokens"], 0)
    assert not fits(CHAT["max_tokens"], 0) and not fits(CHAT["max_completion_tokens"], 0)
    assert fits(CHAT["max_completion_tokens"], 1) and fits(CHAT["max_completion_tokens"], MAX_TOKENS)


LONGEST = "x" * MAX_STOP_STRING_CHARS
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "stop": (
        ["x", LONGEST, [], [LONGEST] * MAX_STOPS], ["", LONGEST + "x", [""], [LONGEST + "x"], 5, [5], {"x": 1}, True],
    ),
    "stop_token_ids": (
        [[], [0, MAX_TOKENS], [7] * MAX_STOP_TOKEN_IDS],
        [[-1], [MAX_TOKENS + 1], [7] * (MAX_STOP_TOKEN_IDS + 1), ["7"]],
    ),
    "allowed_token_ids": (
        [[], [0, MAX_TOKENS], [7] * MAX_ALLOWED_TOKEN_IDS],
        [[-1], [MAX_TOKENS + 1], [1.5], [7] * (MAX_ALLOWED_TOKEN_IDS + 1)],
    ),
    "bad_words": (
        [[], ["x", LONGEST], ["x"] * MAX_BAD_WORDS], [[""], [LONGEST + "x"], ["x"] * (MAX_BAD_WORDS + 1), [5]],
    ),
    "logits_processors": (
        [[], ["x"], ["x"] * MAX_LOGITS_PROCESSORS], [[""], [LONGEST + "x"], ["x"] * (MAX_LOGITS_PROCESSORS + 1), [5]],
    ),
    "ignore_eos": ([True, False], [1, "true", []]),
    "skip_special_tokens": ([True, False], [1, "true", []]),
    "include_stop_str_in_output": ([True, False], [1, "true", []]),
}  # fmt: skip


@pytest.mark.parametrize("route", TABLES)
@pytest.mark.parametrize("name", BOUNDS)
def test_lists_and_flags_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    good, bad = BOUNDS[name]
    for value in good:
        assert fits(TABLES[route][name], value) and is_taken(name, value), str(value)[:80]
    for value in bad:
        assert not fits(TABLES[route][name], value) and not is_taken(name, value), str(value)[:80]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_biases_have_the_bounds_of_the_parameter(table: Mapping[str, Field]) -> None:
    most = {str(token): 0 for token in range(MAX_LOGIT_BIAS)}
    for value, good in (
        ({}, True), ({"0": -100, "7": 100}, True), ({"7": 0.5}, True), (most, True), ({**most, "9999": 0}, False),
        ({"7": 100.1}, False), ({"7": -100.1}, False), ({"7": "1"}, False), ({"7": None}, False), ([], False),
        ({"-1": 0}, False), ({"99999999999": 0}, False),
    ):  # fmt: skip
        assert fits(table["logit_bias"], value) is good
        biases = {int(token): bias for token, bias in value.items()} if isinstance(value, dict) else value
        assert is_taken("logit_bias", biases) is good
    for key in ("x", "", "1.0", "٣", "1e3"):
        assert not fits(table["logit_bias"], {key: 0})


def test_every_sampling_field_was_held_against_its_parameter() -> None:
    assert {name for name, _ in SAMPLED} == FLOAT_BOUNDS.keys() | INT_BOUNDS.keys() - {
        "logprobs",
        "prompt_logprobs",
    } | (BOUNDS.keys() | {"logit_bias"})


def test_what_the_routes_allow_the_engine_takes() -> None:
    assert MAX_CHAT_LOGPROBS <= MAX_LOGPROBS and MAX_COMPLETION_LOGPROBS <= MAX_LOGPROBS
    assert MAX_STOPS <= MAX_STOP_STRINGS and MAX_SALT_CHARS <= MAX_TENANT_CHARS
    assert fits(CHAT["top_logprobs"], MAX_CHAT_LOGPROBS) and not fits(CHAT["top_logprobs"], MAX_CHAT_LOGPROBS + 1)
    assert fits(COMPLETION["logprobs"], MAX_COMPLETION_LOGPROBS)
    assert not fits(COMPLETION["logprobs"], MAX_COMPLETION_LOGPROBS + 1)


def test_what_openai_s_clients_send_fits() -> None:
    chat: dict[str, Any] = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0.7, "n": 1,
        "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"}, "max_tokens": 5,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto", "stop": "\n", "top_p": 1,
        "logprobs": True, "top_logprobs": 2, "modalities": ["text"], "parallel_tool_calls": False, "seed": 1,
    }  # fmt: skip
    for name, value in chat.items():
        assert fits(CHAT[name], value), name
    for prompt in ("x", "", ["x", "y"], [1, 2], [[1], [2, 3]]):
        assert fits(COMPLETION["prompt"], prompt)
    for prompt in ([], [[]], {}, 5, ["x", 1], [[1], "x"], [-1], None, ["x"] * 129):
        assert not fits(COMPLETION["prompt"], prompt)
    assert {name for name, field in CHAT.items() if field.required} == {"model", "messages"}
    assert {name for name, field in COMPLETION.items() if field.required} == {"model", "prompt"}
