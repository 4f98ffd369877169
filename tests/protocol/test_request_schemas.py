"""request_schemas.py: the schemas of messages and tools allow what the parser and the templates accept."""

from typing import Any

from jsonschema import Draft202012Validator

from chairlift.core.chat_template_names_and_limits import ROLES
from chairlift.core.errors import InvalidRequest
from chairlift.protocol import request_schemas
from chairlift.protocol.request_schemas import MESSAGE, TOOL, one_or_many
from chairlift.server.openai.offered_tools import OfferedTools
from chairlift.text.chat_messages import ChatMessages
from support_shares import for_each

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE_WITH_CALL = {"role": "assistant", "tool_calls": [CALL]}


def schema_accepts(schema: dict[str, Any], value: Any) -> bool:
    return Draft202012Validator(schema).is_valid(value)


def server_accepts(message: Any) -> bool:
    """Whether the server accepts a message after one with a tool call."""
    try:
        ChatMessages.parse([MESSAGE_WITH_CALL, message])
    except InvalidRequest:
        return False
    return True


def test_the_roles_are_sorted() -> None:
    assert list(ROLES) == sorted(ROLES)


@for_each("role", [*ROLES, "king", "", 5, None])
def test_every_role_needs_a_content(role: Any) -> None:
    for content in ("x", "", [], [{"type": "text", "text": "a"}], None, 5, {}, ["a"], [{"type": "text"}],
                    [{"type": "image_url"}], [{"type": "text", "text": 5}], [{"type": "output_text", "text": "a"}],
                    [{"type": "refusal", "refusal": "a"}], [{"type": "refusal"}], [{"type": "input_text"}],
                    [{"type": "thinking", "thinking": "a", "signature": "s"}], [{"type": "redacted_thinking"}],
                    [{"type": "reasoning"}, {"type": "text", "text": "a"}]):  # fmt: skip
        message = {"role": role, "content": content, "tool_call_id": "c"}
        assert schema_accepts(MESSAGE, message) is server_accepts(message), message
    assert not schema_accepts(MESSAGE, {"content": "x"}) and not server_accepts({"content": "x"})


CALLS: list[Any] = [
    [CALL], [], None, "x", {}, [5], [{}], [{**CALL, "id": 5}], [{**CALL, "function": {"name": "f"}}],
    [{**CALL, "function": {"name": 5, "arguments": "{}"}}], [{**CALL, "function": {"name": "f", "arguments": {}}}],
    [{**CALL, "function": {"name": "f", "arguments": "[]"}}], [{**CALL, "function": {"name": "f", "arguments": ""}}],
    [{**CALL, "function": {"name": "f", "arguments": ' {"a": 1}\n'}}],
    [{**CALL, "function": {"name": "f", "arguments": "  "}}], [{**CALL, "function": {"name": "f", "arguments": 5}}],
    [{**CALL, "function": {"name": "f", "arguments": None}}], [{**CALL, "function": {"name": "f", "arguments": []}}],
    [{**CALL, "function": {"name": "f", "arguments": '{"city": "Par'}}],
    *([{"id": "c", "type": "custom", "custom": each}] for each in ({"name": "f", "input": "x"}, {"name": "f"}, {}, None,
                                                                 {"name": "f", "input": 5}, {"name": 5})),
    [{**CALL, "type": "custom"}], [{"id": 5, "type": "custom", "custom": {"name": "f"}}], [{**CALL, "type": "other"}],
    [{"id": "c", "type": "other"}],
]  # fmt: skip


@for_each("calls", CALLS)
def test_calls_stand_in_for_a_content(calls: Any) -> None:
    for message in ({"role": "assistant", "tool_calls": calls},
                    {"role": "assistant", "content": None, "tool_calls": calls},
                    {"role": "assistant", "content": "x", "tool_calls": calls}):  # fmt: skip
        assert schema_accepts(MESSAGE, message) is server_accepts(message), message


@for_each("call", [{"name": "f"}, {}, None, "x", [], 5])
def test_the_older_name_of_a_call_does_so_too(call: Any) -> None:
    for more in ({}, {"content": "x"}, {"content": None}, {"tool_calls": [CALL]}):
        message = {"role": "assistant", "function_call": call, **more}
        assert schema_accepts(MESSAGE, message) is server_accepts(message), message


@for_each("name", ["refusal", "reasoning_content", "reasoning", "thinking", "annotations", "audio"])
def test_further_fields_of_an_answer(name: str) -> None:
    for value in ("x", "", None, 5, {}, [], [{"x": 1}]):
        message = {"role": "assistant", "content": None, name: value}
        assert schema_accepts(MESSAGE, message) is server_accepts(message), message
        assert server_accepts(message) is (name != "refusal" or isinstance(value, str | None))


def test_the_answer_of_a_tool_names_its_call() -> None:
    for name in ({}, {"tool_call_id": None}, {"tool_call_id": 5}, {"tool_call_id": "c"}):
        message = {"role": "tool", "content": "x", **name}
        assert schema_accepts(MESSAGE, message) is server_accepts(message), message


FUNCTIONS: list[Any] = [
    {"name": "f"}, {"name": "a.b:c-d_e"}, {"name": ""}, {"name": "x" * 64}, {"name": "x" * 65}, {"name": "f g"},
    {"name": "ä"}, {"name": 5}, {}, [], None, {"name": "f", "parameters": None}, {"name": "f", "parameters": {}},
    {"name": "f", "parameters": {"type": "object"}}, {"name": "f", "parameters": {"type": "string"}},
    {"name": "f", "parameters": {"type": None}}, {"name": "f", "parameters": {"type": ["object", "null"]}},
    {"name": "f", "parameters": {"type": ["string", "null"]}}, {"name": "f", "parameters": {"type": []}},
    {"name": "f", "parameters": {"type": "null"}}, {"name": "f", "parameters": []}, {"name": "f", "parameters": "x"},
]  # fmt: skip


@for_each("function", FUNCTIONS)
def test_a_tool_has_a_function_with_a_name(function: Any) -> None:
    flat = function if isinstance(function, dict) else {}
    for tool in (
        {"type": "function", "function": function}, {"function": function}, {"type": "x", "function": function},
        {"type": None, "function": function}, {"type": 5, "function": function}, {"type": "", "function": function},
        {"type": "custom", "custom": function}, {"custom": function}, {"type": "function", **flat}, flat,
        {"type": "custom", **flat}, {"type": "web_search"}, 5,
    ):  # fmt: skip
        try:
            OfferedTools.read([tool])
            is_valid = True
        except InvalidRequest:
            is_valid = False
        assert schema_accepts(TOOL, tool) is is_valid, tool


def test_a_single_value_may_stand_for_a_list() -> None:
    schema = one_or_many({"type": "integer"}, 2, least=1)
    assert all(schema_accepts(schema, value) for value in (1, [1], [1, 2]))
    assert not any(schema_accepts(schema, value) for value in ("1", [], [1, 2, 3], ["1"], None))


def test_every_schema_is_one() -> None:
    for name in ("MESSAGE", "TOOL", "TOOL_CHOICE", "RESPONSE_FORMAT", "STREAM_OPTIONS"):
        Draft202012Validator.check_schema(getattr(request_schemas, name))
    Draft202012Validator.check_schema(request_schemas.processors({"type": "string"}, 3))
