"""OfferedTools: functions, custom tools in both notations, and tools that are left out; errors name their place."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.left_out_types import MAX_NAMED_TYPES
from chairlift.server.openai.offered_tools import OfferedTools
from support_shares import for_each

INPUT = {
    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False,
}  # fmt: skip


def test_a_function_is_shown_as_it_is_in_every_notation() -> None:
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    for tool in (
        {"type": "function", "function": function}, {"function": function}, {"type": "function", **function}, function
    ):  # fmt: skip
        offered = OfferedTools.read([tool])
        assert offered.tools == [{"type": "function", "function": function}]
        assert offered.places == ["tools[0].function"] and [*offered.schemas] == ["f"]
        assert not offered.custom_names and not offered.left_out.names
    kept = OfferedTools.read([{"type": "function", "function": function, "cache_control": {}}])
    assert kept.tools[0]["cache_control"] == {}


def test_a_custom_tool_is_a_function_with_one_string() -> None:
    custom = {"name": "patch", "description": "Edit.", "format": {"type": "text"}}
    for tool in ({"type": "custom", "custom": custom}, {"type": "custom", **custom}):
        offered = OfferedTools.read([tool, {"type": "function", "function": {"name": "f"}}])
        function = {"name": "patch", "description": "Edit.", "parameters": INPUT}
        assert offered.tools[0] == {"type": "function", "function": function}
        assert offered.custom_names == {"patch"} and offered.schemas["patch"] == INPUT


def test_a_name_has_up_to_128_characters() -> None:
    assert len(OfferedTools.read([{"name": "n" * 128}]).tools) == 1
    with pytest.raises(InvalidRequest, match="1 to 128 characters"):
        OfferedTools.read([{"name": "n" * 129}])


def test_the_parameters_have_another_name_in_other_apis() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    expected = OfferedTools.read([{"name": "f", "parameters": schema}])
    for name in ("input_schema", "inputSchema"):
        for tool in ({"name": "f", name: schema}, {"type": "function", "function": {"name": "f", name: schema}}):
            offered = OfferedTools.read([tool])
            assert (offered.tools, offered.schemas) == (expected.tools, expected.schemas)
    both = OfferedTools.read([{"name": "f", "parameters": schema, "input_schema": {"type": "object"}}])
    assert both.schemas == expected.schemas


def test_other_types_are_left_out_and_named() -> None:
    kinds = ["web_search", "namespace", "x" * 99]
    offered = OfferedTools.read([{"type": kind} for kind in (*kinds, *kinds)])
    assert offered.tools == []
    assert offered.left_out.names == ("tools.web_search", "tools.namespace", f"tools.{'x' * 40}")
    assert len(OfferedTools.read([{"type": f"t{number}"} for number in range(100)]).left_out.names) == MAX_NAMED_TYPES


ARGUMENTS = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


@for_each(
    ("parameters", "schema"),
    [
        (None, {"type": "object"}), ({}, {"type": "object"}), ({"type": None}, {"type": "object"}),
        ({"properties": {"a": {"type": "string"}}}, ARGUMENTS), ({**ARGUMENTS, "type": ["object", "null"]}, ARGUMENTS),
        ({**ARGUMENTS, "type": None, "required": None, "nullable": True}, ARGUMENTS),
        ({"type": "object", "properties": None}, {"type": "object"}),
        ({"anyOf": [ARGUMENTS]}, {"type": "object", "anyOf": [ARGUMENTS]}),
    ],
)  # fmt: skip
def test_arguments_are_an_object_whatever_else_the_schema_allows(parameters: Any, schema: Any) -> None:
    assert OfferedTools.read([{"name": "f", "parameters": parameters}]).schemas == {"f": schema}


@for_each(
    ("tools", "param"),
    [
        ({}, "tools"), ([{"name": "f"}] * 129, "tools"), ([5], "tools[0]"), ([{}], "tools[0]"),
        ([{"type": "function"}], "tools[0]"), ([{"type": "custom"}], "tools[0]"), ([{"type": 5}], "tools[0]"),
        ([{"type": "function", "function": {"name": "f g"}}], "tools[0].function.name"),
        ([{"type": "custom", "custom": {"name": ""}}], "tools[0].custom.name"),
        ([{"type": "custom", "name": "f"}, {"type": "function", "name": "f"}], "tools[1].function.name"),
        ([{"type": "function", "name": "f", "parameters": 5}], "tools[0].function.parameters"),
        ([{"type": "function", "name": "f", "parameters": {"type": "string"}}], "tools[0].function.parameters"),
        ([{"name": "f", "parameters": {"type": ["string", "null"]}}], "tools[0].function.parameters"),
        ([{"name": "f", "parameters": {"type": {}}}], "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OfferedTools.read(tools)
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)
