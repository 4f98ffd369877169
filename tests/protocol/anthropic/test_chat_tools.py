"""chat_tools and chat_tool_choice: tools of Anthropic's API as those of chat completions."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.anthropic.chat_tools import TOOL_MEMBERS, ChatTools, chat_tool_choice, chat_tools
from chairlift.protocol.request_schemas import MAX_TOOLS
from chairlift.protocol.translation.base import FieldNames
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "f", "description": "Do it.", "input_schema": SCHEMA}


def test_a_tool_is_a_function() -> None:
    ignored: list[str] = []
    function = {"name": "f", "description": "Do it.", "parameters": SCHEMA}
    assert chat_tools([TOOL], ignored).tools == [{"type": "function", "function": function}]
    tool = {**TOOL, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}
    assert chat_tools([tool], ignored).tools == [{"type": "function", "function": {**function, "strict": True}}]
    assert ignored == []
    several = [{**tool, "defer_loading": True, "input_examples": None}, {**TOOL, "defer_loading": 1}]
    assert chat_tools(several, ignored).tools
    assert ignored == ["tools.defer_loading"]
    assert chat_tools(None, ignored) == ChatTools([], [], []) == chat_tools([], ignored)


@for_each("members", [{}, {"type": "custom"}, {"input_schema": None}, {"input_schema": {}}])
def test_a_tool_without_a_schema_takes_any_object(members: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert chat_tools([{"name": "f", **members}], []).tools == [{"type": "function", "function": function}]


@for_each(("tools", "param"), [
    ("f", "tools"), ([TOOL] * (MAX_TOOLS + 1), "tools"), ([7], "tools[0]"),
    ([TOOL, {"name": "g", "input_schema": 5}], "tools[1].input_schema"),
    ([{**TOOL, "input_schema": "{}"}], "tools[0].input_schema"),
    ([{"type": "", "name": "web_search"}], "tools[0].type"),
    ([{**TOOL, "type": {}}], "tools[0].type"),
])  # fmt: skip
def test_a_bad_tool_is_named(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat_tools(tools, [])
    assert raised.value.details["param"] == param


@for_each("kind", [
    "web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "computer_20250124",
    "tool_search_tool_regex_20251119", "mcp_toolset", "bash_later", "advisor_20260301",
])  # fmt: skip
def test_tools_that_anthropic_runs_are_left_out_by_name(kind: str) -> None:
    ignored: list[str] = []
    tools = [{"type": kind, "name": "x", "max_uses": 8}, TOOL]
    found = chat_tools(tools, ignored)
    assert [each["function"]["name"] for each in found.tools] == ["f"] and ignored == [f"tools.{kind}"]
    names = FieldNames(tools=found.places, tool_members=TOOL_MEMBERS)
    assert names.own("tools[0].function.parameters") == "tools[1].input_schema"


@for_each(("kind", "name", "required"), [
    ("bash_20250124", "bash", []), ("text_editor_20250728", "str_replace_based_edit_tool", ["command", "path"]),
])  # fmt: skip
def test_tools_of_known_schemas_that_the_client_runs_are_functions(kind: str, name: str, required: list[str]) -> None:
    ignored: list[str] = []
    (tool,) = chat_tools([{"type": kind, "name": name}], ignored).tools
    assert tool["function"]["name"] == name and tool["function"]["parameters"].get("required", []) == required
    assert ignored == [] and "command" in tool["function"]["parameters"]["properties"]


def test_a_tool_of_a_type_with_a_schema_is_a_function() -> None:
    assert chat_tools([{**TOOL, "type": "function"}], []) == chat_tools([TOOL], [])


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
