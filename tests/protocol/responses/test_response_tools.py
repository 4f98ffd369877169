"""ResponseTools: tools of the Responses API as those of chat completions, and back."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.responses.response_tools import OwnName, ResponseTools
from support_shares import for_each

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CODEX = [
    FUNCTION,
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "web_search"},
    {"type": "namespace", "name": "mcp__files", "description": "Of files.", "tools": [
        {"type": "function", "name": "read", "description": "Read it."}, {"type": "function", "name": "write"},
    ]},
    {"type": "local_shell"}, {"type": "image_generation", "output_format": "png"},
]  # fmt: skip


def chat_names(tools: ResponseTools) -> list[str]:
    return [each[each["type"]]["name"] for each in tools.chat]


def test_tools_of_an_agent() -> None:
    tools = ResponseTools.read(CODEX)
    assert [each["type"] for each in tools.chat] == ["function", "custom", "function", "function"]
    assert chat_names(tools) == ["f", "apply_patch", "read", "write"]
    assert tools.chat[1]["custom"] == {"name": "apply_patch", "format": CODEX[1]["format"]}
    assert [each["function"].get("description") for each in tools.chat[2:]] == ["Of files.\n\nRead it.", None]
    assert tools.left_out == ("tools.web_search", "tools.local_shell", "tools.image_generation")
    assert tools.places == ["tools[0]", "tools[1]", "tools[3].tools[0]", "tools[3].tools[1]"]
    assert tools.paths()["tools[2].function"] == "tools[3].tools[0]"
    assert tools.own_name("read") == OwnName("read", "mcp__files") and tools.own_name("f") == OwnName("f")
    assert tools.chat_name("read", "mcp__files") == "read"


def test_one_name_in_two_namespaces() -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [FUNCTION]} for name in ("a", "b__")]
    tools = ResponseTools.read([FUNCTION, *spaces])
    assert chat_names(tools) == ["f", "a__f", "b__f"]
    assert [tools.own_name(name) for name in chat_names(tools)] == [
        OwnName("f"), OwnName("f", "a"), OwnName("f", "b__"),
    ]  # fmt: skip
    assert tools.chat_name("f", "a") == "a__f" and tools.chat_name("f") == "f" and tools.chat_name("g", "x") == "g"


@for_each(("tool", "place"), [
    ({"name": "f"}, "tools[0]"), ({"type": None, "name": "f"}, "tools[0]"),
    ({"type": "function", "function": {"name": "f"}}, "tools[0].function"),
    ({"type": "custom", "custom": {"name": "f"}}, "tools[0].custom"),
])  # fmt: skip
def test_other_forms_of_a_tool(tool: dict[str, Any], place: str) -> None:
    tools = ResponseTools.read([tool])
    assert chat_names(tools) == ["f"] and tools.places == [place]


@for_each(("choice", "expected"), [
    (None, None), ("required", "required"),
    ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ({"type": "custom", "name": "apply_patch"}, {"type": "custom", "custom": {"name": "apply_patch"}}),
    ({"type": "web_search"}, {"type": "web_search"}),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]},
     {"type": "allowed_tools", "allowed_tools": {
         "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "apply_patch"}}]}}),
])  # fmt: skip
def test_choices(choice: Any, expected: Any) -> None:
    assert ResponseTools.read(CODEX).chat_choice(choice) == expected


@for_each(("tools", "param"), [
    ({}, "tools"), ([7], "tools[0]"), ([{"type": 7}], "tools[0].type"), ([{"type": ""}], "tools[0].type"),
    ([{"type": "namespace", "tools": []}], "tools[0].name"),
    ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
    ([{"type": "namespace", "name": "n", "tools": [FUNCTION] * 129}], "tools"),
])  # fmt: skip
def test_a_bad_tool_is_named(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ResponseTools.read(tools)
    assert caught.value.details["param"] == param


def test_a_namespace_within_a_namespace_is_left_out() -> None:
    tools = ResponseTools.read([{"type": "namespace", "name": "a", "tools": [
        {"type": "namespace", "name": "b", "tools": [FUNCTION]}, FUNCTION,
    ]}])  # fmt: skip
    assert chat_names(tools) == ["f"] and tools.left_out == ("tools.namespace",)
