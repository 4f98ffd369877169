"""chat_tools and chat_tool_choice: tools of Anthropic's API as those of chat completions."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.anthropic.chat_tools import chat_tool_choice, chat_tools
from chairlift.protocol.request_schemas import MAX_TOOLS
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "f", "description": "Do it.", "input_schema": SCHEMA}


def test_a_tool_is_a_function() -> None:
    ignored: list[str] = []
    function = {"name": "f", "description": "Do it.", "parameters": SCHEMA}
    assert chat_tools([TOOL], ignored) == [{"type": "function", "function": function}]
    tool = {**TOOL, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}
    assert chat_tools([tool], ignored) == [{"type": "function", "function": {**function, "strict": True}}]
    assert ignored == []
    assert chat_tools([{**tool, "defer_loading": True, "input_examples": None}, {**TOOL, "defer_loading": 1}], ignored)
    assert ignored == ["tools.defer_loading"]
    assert chat_tools(None, ignored) == [] == chat_tools([], ignored)


@for_each("members", [{}, {"input_schema": None}, {"input_schema": {}}])
def test_a_tool_without_a_schema_takes_any_object(members: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert chat_tools([{"name": "f", **members}], []) == [{"type": "function", "function": function}]


@for_each(("tools", "param"), [
    ("f", "tools"), ([TOOL] * (MAX_TOOLS + 1), "tools"), ([7], "tools[0]"),
    ([TOOL, {"name": "g", "input_schema": 5}], "tools[1].input_schema"),
    ([{**TOOL, "input_schema": "{}"}], "tools[0].input_schema"),
    ([{"type": "web_search_20250305", "name": "web_search"}], "tools[0].type"),
    ([{**TOOL, "type": {}}], "tools[0].type"),
])  # fmt: skip
def test_a_bad_tool_is_named(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat_tools(tools, [])
    assert raised.value.details["param"] == param


@pytest.mark.parametrize(("choice", "fields"), [
    (None, {}),
    ({"type": "auto"}, {"tool_choice": "auto"}),
    ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
    ({"type": "none", "disable_parallel_tool_use": None}, {"tool_choice": "none"}),
    ({"type": "tool", "name": "f", "disable_parallel_tool_use": False},
     {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": True}),
])  # fmt: skip
def test_a_choice(choice: Any, fields: dict[str, Any]) -> None:
    assert chat_tool_choice(choice) == fields


@for_each(("choice", "param"), [
    ("auto", "tool_choice"), ({}, "tool_choice.type"), ({"type": "all"}, "tool_choice.type"),
    ({"type": ["auto"]}, "tool_choice.type"), ({"type": "tool"}, "tool_choice.name"),
    ({"type": "auto", "disable_parallel_tool_use": 1}, "tool_choice.disable_parallel_tool_use"),
])  # fmt: skip
def test_a_bad_choice_is_named(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat_tool_choice(choice)
    assert raised.value.details["param"] == param
