"""RESPONSES: every field of the published request type is declared."""

import typing

import jsonschema
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from chairlift.protocol.openapi import body_schema
from chairlift.protocol.request_fields import CHAT, Effect
from chairlift.protocol.responses.responses_request_fields import RESPONSES, SAME_FIELDS
from support_shares import for_each


def test_every_published_field_is_declared() -> None:
    published = set(typing.get_type_hints(ResponseCreateParamsBase))
    assert published - RESPONSES.keys() == set()


def test_equal_fields_are_those_of_chat_completions() -> None:
    assert all(RESPONSES[name] is CHAT[name] for name in SAME_FIELDS)
    assert not any(RESPONSES[name].effect is Effect.REFUSED for name in SAME_FIELDS)


@for_each(("input_items", "is_valid"), [
    ("Hi", True), ([{"role": "user", "content": "Hi"}], True), ([], True), (7, False),
    ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], True),
    ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "x"}, {"type": "reasoning", "summary": []}], True),
    ([{"type": "function_call", "name": "f", "arguments": "{}"}], False),
    ([{"role": "robot", "content": "Hi"}], False), ([{"type": "robot"}], False),
    ([{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
      {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}], True),
    ([{"type": "custom_tool_call", "name": "f", "input": "x"}], False),
    ([{"type": "local_shell_call", "call_id": "c", "action": {}}, {"type": "web_search_call"},
      {"type": "compaction", "encrypted_content": "x"}], True),
])  # fmt: skip
def test_the_schema_of_the_input(input_items: object, is_valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(body_schema(RESPONSES, ()))
    assert validator.is_valid({"model": "m", "input": input_items}) == is_valid


@for_each(("tool", "is_valid"), [
    ({"type": "function", "name": "f"}, True), ({"name": "f"}, True),
    ({"type": "function", "function": {"name": "f"}}, True), ({"type": "function"}, False),
    ({"type": "custom", "name": "f", "format": {"type": "text"}}, True), ({"type": "custom"}, False),
    ({"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}, True),
    ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, False), ({"type": "namespace"}, False),
    ({"type": "web_search"}, True), ({"type": ""}, False), ({"type": 7}, False), ("f", False),
])  # fmt: skip
def test_the_schema_of_a_tool(tool: object, is_valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(body_schema(RESPONSES, ()))
    assert validator.is_valid({"model": "m", "input": "Hi", "tools": [tool]}) == is_valid
