"""request_fields.py: fields match SamplingParams, and their schemas have the same bounds."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import (
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
    MAX_SALT_CHARS,
    MAX_TOP_LOGPROBS,
    TOKENIZE,
    Effect,
    Field,
)
from support_shares import for_each

TABLES = {"chat": CHAT, "completion": COMPLETION}
ALL_TABLES = {**TABLES, "tokenize": TOKENIZE, "detokenize": DETOKENIZE}
ALL_FIELDS = [(route, name) for route, table in ALL_TABLES.items() for name in table]
SAMPLING_FIELDS_BY_ROUTE = sorted(
    {(name, route) for route, table in TABLES.items() for name in table if table[name].sampling}
)

EXPRESSED_OTHERWISE = {
    "logprobs": "a flag and top_logprobs in chats; a number with its own bounds in completions",
    "echo": "in completions only, where it changes the meaning of logprobs",
    "structured": "response_format, structured_outputs, regex, grammar, choice and tool_choice",
}
"""Fields of SamplingParams that a request expresses in another way."""

NOT_IN_REQUESTS = {
    "bad_words_ids": "made of bad_words",
    "prompt_logprobs": "echo with logprobs of /v1/completions; refused by name",
}
"""Fields of SamplingParams that no request has."""


def schema_accepts(field: Field, value: Any) -> bool:
    return Draft202012Validator(field.schema).is_valid(json.loads(json.dumps(value)))


def params_accept(name: str, value: Any) -> bool:
    try:
        SamplingParams(**{"max_tokens": None, name: value})
    except InvalidRequest:
        return False
    return True


@pytest.mark.share(40)
@pytest.mark.parametrize(("route", "name"), ALL_FIELDS)
def test_every_schema_is_valid_and_every_field_says_what_it_is(route: str, name: str) -> None:
    field = ALL_TABLES[route][name]
    Draft202012Validator.check_schema(field.schema)
    assert field.help and "\n" not in field.help and name.replace("_", "").isalnum() and name.islower()
    assert not field.required or field.effect is Effect.USED
    if field.effect is Effect.REFUSED:
        values = [value for value in ("", 2, False, True, {}, []) if value not in field.neutral]
        assert schema_accepts(field, None) and not any(schema_accepts(field, value) for value in values)
        assert all(schema_accepts(field, value) for value in field.neutral)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_field_of_sampling_is_one_of_its_parameters_and_used(table: Mapping[str, Field]) -> None:
    sampling_fields = {name for name, field in table.items() if field.sampling}
    assert sampling_fields <= set(SAMPLING_FIELDS)
    assert all(table[name].effect is Effect.USED for name in sampling_fields)
    assert not sampling_fields & (EXPRESSED_OTHERWISE.keys() | NOT_IN_REQUESTS.keys())


def test_every_parameter_can_be_said_or_is_left_out_on_purpose() -> None:
    sampling_fields = {name for table in TABLES.values() for name, field in table.items() if field.sampling}
    assert sampling_fields | EXPRESSED_OTHERWISE.keys() | NOT_IN_REQUESTS.keys() == set(SAMPLING_FIELDS)
    for name in ("logprobs", "echo"):
        assert COMPLETION[name].effect is Effect.USED
    assert all(name in CHAT and name in COMPLETION for name in STRUCTURED_FIELDS if not name.startswith("json"))
    types: set[str] = set()
    for variant in CHAT["response_format"].schema["anyOf"]:
        type_schema = variant["properties"]["type"]
        types |= set(type_schema["enum"] if "enum" in type_schema else [type_schema["const"]])
    assert types == {"text"} | {*STRUCTURED_FIELDS} - {"choice"}
    assert "bad_words_ids" not in CHAT | COMPLETION
    assert CHAT["prompt_logprobs"].effect is COMPLETION["prompt_logprobs"].effect is Effect.REFUSED


def test_both_routes_mean_the_same_by_the_same_sampling_field() -> None:
    for name in CHAT.keys() & COMPLETION.keys() - {"max_tokens"}:
        if CHAT[name].sampling:
            assert CHAT[name] == COMPLETION[name], name


@for_each(("name", "route"), [each for each in SAMPLING_FIELDS_BY_ROUTE if each[0] in FLOAT_BOUNDS])
def test_numbers_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    low, high, _ = FLOAT_BOUNDS[name]
    tiny = 1e-9
    for value in (low, high, low - tiny, high + tiny, low + tiny, high - tiny, (low + high) / 2, True, "1", [1.0]):
        assert schema_accepts(TABLES[route][name], value) == params_accept(name, value), value
    assert schema_accepts(TABLES[route][name], high) and not schema_accepts(TABLES[route][name], high + tiny)


@for_each(("name", "route"), [each for each in SAMPLING_FIELDS_BY_ROUTE if each[0] in INT_BOUNDS])
def test_integers_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    low, high = INT_BOUNDS[name]
    for value in {low - 1, low, low + 1, 1, high, high + 1, 1.5, "1"} - ({0, -1} if name == "max_tokens" else set()):
        assert schema_accepts(TABLES[route][name], value) == params_accept(name, value), value
    assert schema_accepts(TABLES[route][name], high) and not schema_accepts(TABLES[route][name], high + 1)


def test_no_output_at_all_can_be_asked_for_only_where_a_prompt_can_be_echoed() -> None:
    assert not params_accept("max_tokens", 0) and SamplingParams(max_tokens=0, echo=True)
    assert schema_accepts(COMPLETION["max_tokens"], 0)
    assert not schema_accepts(CHAT["max_tokens"], 0) and not schema_accepts(CHAT["max_completion_tokens"], 0)
    assert schema_accepts(CHAT["max_completion_tokens"], 1) and schema_accepts(
        CHAT["max_completion_tokens"], MAX_TOKENS
    )


LONGEST = "x" * MAX_STOP_STRING_CHARS
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "stop": (
        ["x", LONGEST, [], [LONGEST] * 16, ["x"] * MAX_STOP_STRINGS],
        ["", LONGEST + "x", [""], [LONGEST + "x"], ["x"] * (MAX_STOP_STRINGS + 1), 5, [5], {"x": 1}, True],
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


@pytest.mark.share(2)
@pytest.mark.parametrize("route", TABLES)
@pytest.mark.parametrize("name", BOUNDS)
def test_lists_and_flags_have_the_bounds_of_the_parameter(name: str, route: str) -> None:
    valid, invalid = BOUNDS[name]
    for value in valid:
        assert schema_accepts(TABLES[route][name], value) and params_accept(name, value), str(value)[:80]
    for value in invalid:
        assert not schema_accepts(TABLES[route][name], value) and not params_accept(name, value), str(value)[:80]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_biases_have_the_bounds_of_the_parameter(table: Mapping[str, Field]) -> None:
    largest = {str(token): 0 for token in range(MAX_LOGIT_BIAS)}
    for value, valid in (
        ({}, True), ({"0": -100, "7": 100}, True), ({"7": 0.5}, True), (largest, True), ({**largest, "9999": 0}, False),
        ({"7": 100.1}, False), ({"7": -100.1}, False), ({"7": "1"}, False), ({"7": None}, False), ([], False),
        ({"-1": 0}, False), ({"99999999999": 0}, False),
    ):  # fmt: skip
        assert schema_accepts(table["logit_bias"], value) is valid
        biases = {int(token): bias for token, bias in value.items()} if isinstance(value, dict) else value
        assert params_accept("logit_bias", biases) is valid
    for key in ("x", "", "1.0", "٣", "1e3"):
        assert not schema_accepts(table["logit_bias"], {key: 0})


def test_every_sampling_field_was_held_against_its_parameter() -> None:
    assert {name for name, _ in SAMPLING_FIELDS_BY_ROUTE} == FLOAT_BOUNDS.keys() | INT_BOUNDS.keys() - {
        "logprobs",
        "prompt_logprobs",
    } | (BOUNDS.keys() | {"logit_bias"})


def test_what_the_routes_allow_the_engine_takes() -> None:
    assert MAX_TOP_LOGPROBS <= MAX_LOGPROBS
    assert MAX_SALT_CHARS <= MAX_TENANT_CHARS
    assert schema_accepts(CHAT["top_logprobs"], MAX_TOP_LOGPROBS) and not schema_accepts(
        CHAT["top_logprobs"], MAX_TOP_LOGPROBS + 1
    )
    assert schema_accepts(COMPLETION["logprobs"], MAX_TOP_LOGPROBS)
    assert not schema_accepts(COMPLETION["logprobs"], MAX_TOP_LOGPROBS + 1)


def test_what_openai_s_clients_send_fits() -> None:
    chat: dict[str, Any] = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0.7, "n": 1,
        "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"}, "max_tokens": 5,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto", "stop": "\n", "top_p": 1,
        "logprobs": True, "top_logprobs": 2, "modalities": ["text"], "parallel_tool_calls": False, "seed": 1,
    }  # fmt: skip
    for name, value in chat.items():
        assert schema_accepts(CHAT[name], value), name
    for prompt in ("x", "", ["x", "y"], [1, 2], [[1], [2, 3]]):
        assert schema_accepts(COMPLETION["prompt"], prompt)
    for prompt in ([], [[]], {}, 5, ["x", 1], [[1], "x"], [-1], None, ["x"] * 129):
        assert not schema_accepts(COMPLETION["prompt"], prompt)
    assert {name for name, field in CHAT.items() if field.required} == {"messages"}
    assert {name for name, field in COMPLETION.items() if field.required} == {"prompt"}
