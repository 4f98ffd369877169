"""read_chat and read_completion: random and deeply nested bodies are parsed or rejected."""

import re
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_fields import CHAT, COMPLETION, Effect
from chairlift.server.openai.base_request import BaseRequest
from chairlift.server.openai.chat_request import ChatRequest, read_chat
from chairlift.server.openai.completion_request import read_completion
from chairlift.text.tool_formats.json_calls import HERMES
from support_request_bodies import CHAT_BODY, COMPLETION_BODY, TOOL, chat, completion, nested, outcome, schema_form


def is_in_table(table: Mapping[str, Any], param: object) -> bool:
    """Whether `param` names a field of the table, or a value inside one."""
    return isinstance(param, str) and param.replace("[", ".").partition(".")[0] in table


@pytest.mark.parametrize("depth", [40, 70, 1020])
def test_what_is_nested_deep_is_refused_or_taken_and_nothing_breaks(depth: int) -> None:
    deep = nested(depth)
    for table, parse in ((CHAT, chat), (COMPLETION, completion)):
        for name in [*table, "made_up"]:
            for value in (deep, [deep], [[deep]], {"type": deep}, {"type": "json_schema", "json_schema": deep},
                          {"0": deep}, schema_form(deep), [{"type": "function", "function": deep}],
                          [{"role": "assistant", "tool_calls": [deep]}], {"include_usage": deep}):  # fmt: skip
                result = outcome(parse, **{name: value, **({"stream": True} if name == "stream_options" else {})})
                if isinstance(result, InvalidRequest):
                    assert is_in_table(table, result.details["param"]) and len(result.message) < 400, result.message
                else:
                    assert isinstance(result, BaseRequest)


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 130) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [
        "text",
        "json_object",
        "json_schema",
        "function",
        "required",
        "auto",
        "none",
        "assistant",
        "tool",
        "user",
        "f",
        "c",
        "5",
    ]
)
KEYS = TEXTS | st.sampled_from(
    ["type", "function", "name", "parameters", "json_schema", "schema", "role", "content", "tool_calls", "tool_call_id",
     "id", "arguments", "include_usage"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.just(TOOL) | st.just("{}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
CALLS = st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "type": JSON, "function": JSON | st.fixed_dictionaries(
    {}, optional={"name": JSON, "arguments": JSON})}) | JSON, max_size=2)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"role": TEXTS, "content": JSON, "tool_calls": CALLS | JSON, "tool_call_id": JSON}
    )
    | JSON,
    max_size=3,
)


def bodies(table: Mapping[str, Any], base: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(sorted(table)) | TEXTS
    fields = st.dictionaries(names, JSON, max_size=4)
    special = st.fixed_dictionaries({}, optional={"messages": MESSAGES, "tools": st.lists(JSON, max_size=2)})
    return st.tuples(st.sampled_from([base, {}]), special, fields).map(
        lambda parts: {**parts[0], **parts[1], **parts[2]}
    )


RENDERED = ("reasoning_effort", "documents")
"""Fields that are used if the chat template reads them; here there is none."""


def check_body(table: Mapping[str, Any], body: dict[str, Any]) -> None:
    """Assert that a body is parsed without being changed, or rejected with the name of a field."""
    body = orjson.loads(orjson.dumps(body))
    before = orjson.dumps(body)
    request = outcome(read_chat, body, HERMES) if table is CHAT else outcome(read_completion, body)
    if isinstance(request, InvalidRequest):
        assert is_in_table(table, request.details["param"]), request.details
        assert len(request.message) < 600, request.message
        return
    if isinstance(request, ChatRequest):
        assert len(request.messages.messages) == len(body["messages"])
    assert orjson.dumps(body) == before, "parsing does not change the body"
    ignored = {name for name in request.ignored if not name.startswith("messages.")}
    assert {re.split("[./]", name)[0] for name in ignored} <= {*body} or ignored <= {*body}
    used = {name for name in body if name in table and table[name].effect is Effect.USED}
    assert not used & {*request.ignored} - {"stream_options", *RENDERED}, "no used field is listed as ignored"
    unsupported = [name for name in body if name in table and table[name].effect is Effect.REFUSED]
    assert all(body[name] in (None, *table[name].neutral) for name in unsupported)


@given(bodies(CHAT, CHAT_BODY))
def test_any_object_is_a_chat_or_is_refused(body: dict[str, Any]) -> None:
    check_body(CHAT, body)


@pytest.mark.full
@given(bodies(COMPLETION, COMPLETION_BODY))
def test_any_object_is_a_completion_or_is_refused(body: dict[str, Any]) -> None:
    check_body(COMPLETION, body)


@given(st.sampled_from(sorted(CHAT)), JSON)
def test_any_value_of_any_field_alone(name: str, value: Any) -> None:
    check_body(CHAT, {**CHAT_BODY, name: value})
    check_body(COMPLETION, {**COMPLETION_BODY, name: value})
