"""ResponseTools: tools of the Responses API as those of chat completions, and back."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.responses.request import TOOL_MEMBERS
from chairlift.protocol.responses.response_tools import OwnName, ResponseTools
from chairlift.protocol.translation.base import FieldNames
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
    names = FieldNames(tools=tools.places, tool_members=TOOL_MEMBERS)
    assert names.own("tools[2].function") == "tools[3].tools[0]"
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
    ({"type": "web_search"}, None), ({"type": "mcp", "server_label": "x"}, None), (7, 7),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]},
     {"type": "allowed_tools", "allowed_tools": {
         "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "apply_patch"}}]}}),
])  # fmt: skip
def test_choices(choice: Any, expected: Any) -> None:
    assert ResponseTools.read(CODEX).chat_choice(choice) == expected


HOSTED = [{"type": "web_search"}]


@for_each(("choice", "expected"), [
    ("none", "none"), ("auto", "auto"), ("required", None), ({"type": "web_search"}, None), (7, 7), ("x", "x"),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}, None),
    ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
     {"type": "allowed_tools", "allowed_tools": {
         "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}),
])  # fmt: skip
def test_choices_where_all_tools_are_left_out(choice: Any, expected: Any) -> None:
    assert ResponseTools.read(HOSTED).chat_choice(choice) == expected


def test_a_choice_without_tools_is_an_error_of_chat_completions() -> None:
    choice = {"type": "web_search"}
    assert ResponseTools.read([]).chat_choice(choice) == choice


LONG = "n" * 124


@for_each(("tools", "expected"), [
    ([("a b", "f"), ("c", "f")], ["a_b__f", "c__f"]),
    ([(LONG, "get_it"), ("c", "get_it")], [f"{LONG}_2", "c__get_it"]),
    ([(LONG, "get_it"), (f"{LONG}x", "get_it"), ("c", "get_it")], [f"{LONG}_2", f"{LONG}_3", "c__get_it"]),
    ([("", "a__f"), ("a", "f"), ("b", "f")], ["a__f", "a__f_2", "b__f"]),
    ([("a", "f"), ("b", "f"), ("c", "a__f")], ["a__f_2", "b__f", "a__f"]),
    ([("a", "f"), ("a__", "f"), ("", "f")], ["a__f", "a__f_2", "f"]),
])  # fmt: skip
def test_every_function_of_a_namespace_has_a_name_of_its_own(tools: list[tuple[str, str]], expected: list[str]) -> None:
    listed = [
        {"type": "namespace", "name": space, "tools": [{"type": "function", "name": name}]} if space
        else {"type": "function", "name": name}
        for space, name in tools
    ]  # fmt: skip
    read = ResponseTools.read(listed)
    assert chat_names(read) == expected and all(len(name) <= 128 for name in expected)
    for (space, name), chat_name in zip(tools, expected, strict=True):
        assert read.own_name(chat_name) == OwnName(name, space) and read.chat_name(name, space or None) == chat_name


def test_tools_of_items_are_added_once() -> None:
    of_items = [
        ([FUNCTION, {"type": "function", "name": "g"}, {"type": "web_search"}], "input[2].tools"),
        (None, "input[3].tools"), ([{"type": "function", "name": "g"}], "previous_response_id"),
    ]  # fmt: skip
    tools = ResponseTools.read([FUNCTION], of_items)
    assert chat_names(tools) == ["f", "g"] and tools.places == ["tools[0]", "input[2].tools[1]"]
    assert tools.left_out == ("tools.web_search",)
    with pytest.raises(InvalidRequest) as caught:
        ResponseTools.read(None, [({}, "input[0].tools")])
    assert caught.value.details["param"] == "input[0].tools"


@for_each("name", [["x"], {"a": 1}, 7, None])
def test_a_name_that_is_no_string_is_an_error_of_chat_completions(name: Any) -> None:
    tool = {"type": "function", "name": name}
    for tools, of_items in (([tool], [([], "input[0].tools")]), (None, [([tool], "input[0].tools")])):
        assert chat_names(ResponseTools.read(tools, of_items)) == [name]


def test_tools_of_items_count_for_the_limit() -> None:
    of_items = [([{"type": "function", "name": f"f{number}"}], f"input[{number}].tools") for number in range(200)]
    with pytest.raises(InvalidRequest) as caught:
        ResponseTools.read(None, of_items)
    assert caught.value.details["param"] == "input[128].tools"


def test_what_describes_a_tool_may_be_beside_its_function() -> None:
    (tool,) = ResponseTools.read([{
        "type": "function", "description": "outer", "strict": True, "parameters": None,
        "function": {"name": "f", "description": "inner"},
    }]).chat  # fmt: skip
    assert tool["function"] == {"name": "f", "description": "inner", "strict": True}


def test_a_namespace_without_tools_is_named() -> None:
    tools = ResponseTools.read([{"type": "namespace", "name": "n", "description": "Of files.", "tools": []}])
    assert tools.chat == [] and tools.left_out == ("tools.namespace",)


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
