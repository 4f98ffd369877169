"""tool_choice.py: tools that a request may offer and choose, and grammars of forced calls."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS, MAX_TOOLS
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.tool_choice import ToolChoice, read_tools
from chairlift.text.forced_call_grammar import forced_call_parser
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.json_calls import HERMES, LLAMA3, MISTRAL
from chairlift.text.tool_formats.tool_call_parser import CustomCallInput, CustomCallStart
from support_grammars import EOS, allowed_tokens, generate_output, grammar_of, random_pick
from support_request_bodies import JSON, outcome
from support_shares import for_each

X = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"],
     "additionalProperties": False}  # fmt: skip
FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}


def tool(name: Any, parameters: Any = X, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("f"), tool("g", FLAG)]


def function_choice(name: Any) -> dict[str, Any]:
    """Return a tool_choice that names a function."""
    return {"type": "function", "function": {"name": name}}


def rejection_message(param: str, **fields: Any) -> str:
    """Assert that tools are rejected for the field `param`; returns the error message."""
    with pytest.raises(InvalidRequest) as caught:
        read_tools(fields, HERMES)
    assert caught.value.details["param"] == param
    assert caught.value.message.startswith(param)
    assert len(caught.value.message) < 400
    return caught.value.message


@for_each("fields", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "none"},
                                   {"tool_choice": "auto"}, {"tool_choice": None}])  # fmt: skip
@for_each("tool_format", [HERMES, GENERIC])
def test_without_tools_there_is_nothing_to_choose(fields: dict[str, Any], tool_format: ToolFormat) -> None:
    assert read_tools(fields, tool_format) is None


@for_each("choice", ["required", "f", "", function_choice("f"), [], {}, 5, True])
def test_a_choice_needs_tools(choice: Any) -> None:
    assert "needs tools" in rejection_message("tool_choice", tool_choice=choice)
    assert "needs tools" in rejection_message("tool_choice", tool_choice=choice, tools=[])


def test_tools_may_be_called_as_the_model_likes() -> None:
    for choice in (None, "auto"):
        for tool_format in (HERMES, MISTRAL, LLAMA3):
            result = read_tools({"tools": TOOLS, "tool_choice": choice}, tool_format)
            assert result == ToolChoice(tools=TOOLS, schemas={"f": X, "g": FLAG}, tool_format=tool_format)
            assert result.shows_special is (tool_format != HERMES), "markers that are special tokens stay in the text"


def test_tools_that_may_not_be_called_are_not_shown_to_the_model() -> None:
    for tool_format in (HERMES, GENERIC):
        result = read_tools({"tools": TOOLS, "tool_choice": "none"}, tool_format)
        assert result == ToolChoice()
        assert not result.shows_special


@pytest.mark.parametrize("tools", [{}, "f", 5, True, {"0": TOOLS[0]}])
def test_tools_are_a_list(tools: Any) -> None:
    assert "must be a list" in rejection_message("tools", tools=tools)


def test_the_number_of_tools_is_limited() -> None:
    tools = [tool(f"f{number}") for number in range(MAX_TOOLS + 1)]
    assert "129 entries, the limit is 128" in rejection_message("tools", tools=tools)
    result = read_tools({"tools": tools[:MAX_TOOLS], "tool_choice": "required"}, HERMES)
    assert result is not None and result.structured is not None


@for_each(
    "entry",
    [None, 5, "f", [], {}, {"type": "function"}, {"type": "function", "function": "f"}, {"type": "custom"},
     {"type": ["function"], "function": {"name": "f"}}, {"type": "function", "function": None}],
)  # fmt: skip
def test_a_tool_is_a_function(entry: Any) -> None:
    assert rejection_message("tools[1]", tools=[TOOLS[0], entry])


@for_each(
    "name",
    [
        None,
        5,
        "",
        "a b",
        "f\n",
        "\nf",
        "a\nb",
        "ä",
        "f()",
        "x" * (MAX_TOOL_NAME_CHARS + 1),
        ["f"],
        "f\x00",
        "<|im_end|>",
    ],
)
def test_a_name_is_plain(name: Any) -> None:
    assert rejection_message("tools[0].function.name", tools=[tool(name)])


@pytest.mark.parametrize("name", ["f", "x" * MAX_TOOL_NAME_CHARS, "a.b:c-d_e", "9"])
def test_plain_names_are_taken(name: str) -> None:
    result = read_tools({"tools": [tool(name)], "tool_choice": function_choice(name)}, HERMES)
    assert result is not None and result.tools == [tool(name)]


def test_a_name_is_there_once() -> None:
    assert "twice" in rejection_message("tools[2].function.name", tools=[*TOOLS, tool("f", FLAG)])


@for_each(
    "parameters",
    [
        [],
        "x",
        5,
        True,
        False,
        {"type": "string"},
        {"type": ["string", "null"]},
        {"x-guidance": {}},
        {"a": [[[[{}]]]] * 300_000},
    ],
)
def test_parameters_are_a_schema_within_bounds(parameters: Any) -> None:
    assert rejection_message("tools[0].function.parameters", tools=[tool("f", parameters)])


@pytest.mark.parametrize("parameters", [
    None, {}, {"type": "object"}, {"description": "any"}, {"type": None}, {"type": ["object", "null"]},
    {"type": "object", "properties": None, "required": None, "nullable": True},
])  # fmt: skip
def test_a_tool_without_parameters_takes_any_object(parameters: Any) -> None:
    result = read_tools({"tools": [tool("f", parameters)], "tool_choice": "required"}, HERMES)
    assert result is not None
    for arguments, fits in (("{}", True), ('{"any": [1, null]}', True), ("[]", False), ("5", False)):
        assert accepts(result, f'{{"name": "f", "arguments": {arguments}}}') == (fits, fits), arguments


@pytest.mark.parametrize("strict", [True, False])
def test_arguments_without_types_have_those_that_are_meant(strict: bool) -> None:
    level = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    levels = {"oneOf": [{"type": "array", "items": {"type": name}} for name in ("integer", "number")]}
    schema = {
        "properties": {"level": level, "name": {"pattern": "^a$"}, "note": {"type": "string", "nullable": True},
         "levels": levels, "low": {"type": ["integer", "null"], "$ref": "#/$defs/low"}},
        "$defs": {"low": {"minimum": 1}},
    }  # fmt: skip
    tools = [tool("f", schema, strict=strict)]
    result = read_tools({"tools": tools, "tool_choice": "required"}, HERMES)
    assert result is not None and result.ignored == tuple(
        f"tools[0].function.parameters/properties/{name}/oneOf" for name in ("level", "levels")
    )
    for arguments, fits in (
        ('{"levels": [1, 1.5], "low": null}', True), ('{"levels": [1], "low": 1}', True), ('{"low": 0}', False),
        ('{"level": 1, "name": "a", "note": null}', True), ('{"level": 1.5}', True), ('{"level": "a"}', False),
        ('{"name": 5}', False), ("5", False),
    ):  # fmt: skip
        assert accepts(result, f'{{"name": "f", "arguments": {arguments}}}') == (fits, fits), arguments


@pytest.mark.parametrize(("parameters", "empty", "accepts_one", "other"), [
    ({"properties": {}}, True, False, False),
    ({"properties": {"x": {"type": "integer"}}}, True, True, False),
    ({"properties": {"x": {"type": "integer"}}, "required": ["x"]}, False, True, False),
    ({"properties": {"x": {"type": "integer"}}, "additionalProperties": True}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "patternProperties": {"^y$": {}}}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "allOf": [{"required": ["x"]}]}, False, True, True),
    ({"properties": {"x": {"type": "integer"}}, "required": ["y"]}, False, False, True),
], ids=["none", "optional", "required", "open", "typed", "patterns", "composed", "unnamed"])  # fmt: skip
def test_a_forced_call_makes_up_no_arguments(parameters: Any, empty: bool, accepts_one: bool, other: bool) -> None:
    result = read_tools({"tools": [tool("f", parameters)], "tool_choice": "required"}, HERMES)
    assert result is not None and result.tools == [tool("f", parameters)], "the prompt has the schema as it was sent"
    for arguments, fits in {"{}": empty, '{"x": 1}': accepts_one, '{"x": 1, "y": 2}': other}.items():
        assert accepts(result, f'{{"name": "f", "arguments": {arguments}}}')[1] == fits, arguments


@pytest.mark.parametrize("parameters", [{"properties": 5}, {"properties": {"x": {}}, "required": 5},
                                        {"properties": {"x": {}}, "required": [["x"]]}])  # fmt: skip
def test_an_invalid_schema_is_refused_where_a_call_is_forced(parameters: Any) -> None:
    given = {"tools": [tool("g"), tool("f", parameters)]}
    message = rejection_message("tools[1].function.parameters", **given, tool_choice="required")
    assert "cannot be enforced: /" in message and " must be " in message
    assert read_tools(given, HERMES), "nothing is forced"
    assert read_tools({**given, "tool_choice": function_choice("g")}, HERMES), "this tool is not called"


UNIQUE = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "n": {"not": {"const": 1}},
    },
    "required": ["n"],
}


@pytest.mark.parametrize("strict", [None, False, True])
def test_keywords_that_cannot_be_enforced_are_named_or_refused(strict: bool | None) -> None:
    tools = [tool("f"), tool("g", UNIQUE, strict=strict)]
    place = "/properties/tags/uniqueItems"
    if strict:
        message = rejection_message("tools[1].function.parameters", tools=tools, tool_choice="required")
        assert message.endswith(f"cannot be enforced: {place} needs items from a finite set, such as an enum")
        return
    result = read_tools({"tools": tools, "tool_choice": "required"}, HERMES)
    assert result is not None and result.ignored == (f"tools[1].function.parameters{place}",)
    for arguments, fits in ({"tags": ["a", "a"], "n": 2}, True), ({"n": 1}, False), ({"tags": [1], "n": 2}, False):
        assert accepts(result, json.dumps({"name": "g", "arguments": arguments}))[1] == fits
    for choice in ("auto", function_choice("f")):
        other = read_tools({"tools": tools, "tool_choice": choice}, HERMES)
        assert other is not None and other.ignored == ()


def test_whether_calls_may_be_several_is_true_or_false() -> None:
    for value in ("yes", 0, [], {}):
        assert rejection_message("parallel_tool_calls", tools=TOOLS, parallel_tool_calls=value)
        assert rejection_message("parallel_tool_calls", parallel_tool_calls=value)
    result = read_tools({"tools": TOOLS, "parallel_tool_calls": False}, HERMES)
    assert result is not None and not result.allows_parallel_calls


@for_each(
    "choice",
    ["always", "f", "", 5, True, [], {}, {"type": "function"}, {"type": "function", "function": "f"},
     {"function": {"name": "f"}}, function_choice(None), function_choice(5), function_choice(["f"]),
     {"type": "allowed_tools"}, {"type": "allowed_tools", "allowed_tools": []}],
)  # fmt: skip
def test_a_choice_is_a_word_or_names_a_function(choice: Any) -> None:
    assert "must be none, auto, required or an object" in rejection_message(
        "tool_choice", tools=TOOLS, tool_choice=choice
    )


CUSTOM = {"type": "custom", "custom": {"name": "f", "description": "Runs code.", "format": {"type": "text"}}}
"""A tool of OpenAI's whose input is free text."""


@pytest.mark.parametrize("choice", [
    {"type": "custom", "custom": {"name": "f"}}, {"type": "custom", "name": "f"}, "required",
    {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "name": "f"}]}},
])  # fmt: skip
def test_a_call_of_a_custom_tool_may_be_forced(choice: Any) -> None:
    result = read_tools({"tools": [CUSTOM], "tool_choice": choice}, HERMES)
    assert result is not None and result.is_forced and result.custom_names == {"f"} and result.structured is not None
    parser = result.make_parser()
    assert parser is not None
    pieces = [*parser.push('{"name": "f", "arguments": {"input": "a\\nb"}}'), *parser.flush()]
    assert pieces == [CustomCallStart(0, "f"), CustomCallInput(0, "a\nb")]


def test_tools_that_the_server_would_have_to_run_are_left_out_and_named() -> None:
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "web_search", "filters": {}}]
    named = ("tools.web_search", "tools.local_shell")
    for choice in (None, "auto", {"type": "web_search"}, "none"):
        ignored = (*named, "tool_choice") if isinstance(choice, dict) else named
        result = read_tools({"tools": [*hosted, *TOOLS], "tool_choice": choice}, HERMES)
        assert result is not None and result.ignored == ignored
        assert result.tools == (None if choice == "none" else TOOLS)
        alone = read_tools({"tools": hosted, "tool_choice": choice}, HERMES)
        assert alone == ToolChoice(ignored=ignored)
    forced = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [hosted[0], function_choice("g")]},
    }
    result = read_tools({"tools": [*hosted, *TOOLS], "tool_choice": forced}, HERMES)
    assert result is not None and result.is_forced and [*result.schemas] == ["g"]
    for needed in ("required", "any", {"type": "any"}):
        result = read_tools({"tools": hosted, "tool_choice": needed}, HERMES)
        assert result == ToolChoice(ignored=(*named, "tool_choice"))
    flat = {"type": "allowed_tools", **forced["allowed_tools"]}
    assert read_tools({"tools": [*hosted, *TOOLS], "tool_choice": flat}, HERMES) == read_tools(
        {"tools": [*hosted, *TOOLS], "tool_choice": forced}, HERMES
    )  # fmt: skip
    assert "not among the tools" in rejection_message("tool_choice", tools=hosted, tool_choice=function_choice("g"))
    for wrong in ({"type": "custom", "name": 1.9e170}, {"type": "function"}, {"type": "allowed_tools"}):
        assert "must be none, auto" in rejection_message("tool_choice", tools=hosted, tool_choice=wrong)


def test_a_choice_in_the_words_of_other_apis_is_the_same_choice() -> None:
    for choice, same in (("any", "required"), ({"type": "any"}, "required"), ({"type": "none"}, "none"),
                         ({"type": "tool", "name": "g"}, function_choice("g"))):  # fmt: skip
        assert read_tools({"tools": TOOLS, "tool_choice": choice}, HERMES) == read_tools(
            {"tools": TOOLS, "tool_choice": same}, HERMES
        )  # fmt: skip
        single = {"type": choice, "disable_parallel_tool_use": True} if isinstance(choice, str) else choice
        one = read_tools({"tools": TOOLS, "tool_choice": {**single, "disable_parallel_tool_use": True}}, HERMES)
        assert one == read_tools({"tools": TOOLS, "tool_choice": same, "parallel_tool_calls": False}, HERMES)
        if same != "none":
            assert "needs tools" in rejection_message("tool_choice", tool_choice=choice)


@pytest.mark.parametrize("name", ["h", "", "F", "f ", "x" * 10_000])
def test_the_function_that_is_chosen_is_one_of_the_tools(name: str) -> None:
    assert "not among the tools" in rejection_message("tool_choice", tools=TOOLS, tool_choice=function_choice(name))


def accepts_prefix(grammar: Any, text: bytes) -> bool:
    """Whether a grammar accepts a text; stops at the first byte that it does not accept."""
    for byte in text:
        if grammar.is_terminated or byte not in allowed_tokens(grammar):
            return False
        grammar.advance(byte)
    return True


def read_forced_choice(choice: Any, tool_format: ToolFormat = HERMES, **more: Any) -> ToolChoice:
    result = read_tools({"tools": TOOLS, "tool_choice": choice, **more}, tool_format)
    assert result is not None and result.structured is not None and result.structured.kind == "grammar"
    assert result.is_forced and not result.shows_special
    assert result.prefill == tool_format.prefill and result.tools == TOOLS
    return result


def accepts(result: ToolChoice, text: str) -> tuple[bool, bool]:
    """Return whether the grammar accepts a text, and whether the output may end after it."""
    assert result.structured is not None
    grammar = grammar_of(grammar=result.structured.grammar)
    fits = accepts_prefix(grammar, text.encode())
    return fits, fits and (grammar.is_terminated or EOS in allowed_tokens(grammar))


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL, LLAMA3])
def test_a_forced_answer_is_calls_and_nothing_else(tool_format: ToolFormat) -> None:
    arguments_key = "parameters" if tool_format == LLAMA3 else "arguments"
    f, g = f'{{"name": "f", "{arguments_key}": {{"x": 5}}}}', f'{{"name": "g", "{arguments_key}": {{"on": true}}}}'
    named_choice, required = (read_forced_choice(choice, tool_format) for choice in (function_choice("f"), "required"))
    single = read_forced_choice("required", tool_format, parallel_tool_calls=False)
    assert (
        accepts(named_choice, f) == accepts(required, f) == accepts(required, g) == accepts(single, g) == (True, True)
    )
    assert accepts(named_choice, g) == accepts(required, "Hello") == accepts(required, "<tool_call>") == (False, False)
    assert accepts(required, tool_format.separator.join((f, g, f))) == (True, True)
    assert accepts(named_choice, f"{f}; {f}") == accepts(single, tool_format.separator.join((f, g))) == (False, False)
    assert accepts(required, f'{{"name": "f", "{arguments_key}": {{"x": "5"') == (False, False), (
        "arguments follow the schema"
    )
    assert (named_choice.allows_parallel_calls, required.allows_parallel_calls, single.allows_parallel_calls) == (
        False,
        True,
        False,
    )


@for_each("tool_format", [HERMES, MISTRAL, LLAMA3])
@for_each("seed", range(3))
def test_whatever_a_forced_answer_is_it_is_read_as_calls_of_the_tools(tool_format: ToolFormat, seed: int) -> None:
    result = read_forced_choice("required", tool_format, parallel_tool_calls=bool(seed))
    assert result.structured is not None
    text = generate_output(grammar_of(grammar=result.structured.grammar), random_pick(seed)).decode()
    message = ChatDeltaBuilder(forced_call_parser({}), allows_parallel_calls=result.allows_parallel_calls).message(text)
    assert message["content"] is None, "no text besides the calls"
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        assert set(arguments) == {{"f": "x", "g": "on"}[call["function"]["name"]]}


def test_tools_whose_grammar_cannot_be_are_refused_by_the_name_of_their_field() -> None:
    brackets = tool("f", {"properties": {"x": {"const": "(" * 65}}})
    assert "deeper than 64" in rejection_message("tools", tools=[brackets], tool_choice="required")
    long = [tool(f"f{number}", {"properties": {"x": {"const": "x" * 30_000}}}) for number in range(10)]
    assert "262144" in rejection_message("tools", tools=long, tool_choice="required")
    assert read_tools({"tools": [brackets, *long[1:]]}, HERMES), "nothing is forced"


NAME = JSON | st.sampled_from(["f", "g"])


@given(
    st.lists(st.builds(tool, NAME, JSON) | JSON, max_size=3),
    JSON | st.just("required") | st.builds(function_choice, NAME),
    st.sampled_from([HERMES, MISTRAL, LLAMA3, GENERIC]),
)
def test_any_tools_are_read_or_rejected(tools: list[Any], choice: Any, tool_format: ToolFormat) -> None:
    result = outcome(read_tools, {"tools": tools, "tool_choice": choice}, tool_format)
    if isinstance(result, InvalidRequest):
        assert str(result.details["param"]).partition("[")[0] in ("tools", "tool_choice")
        return
    assert (result is None) == (not tools)
    assert result is None or not result.is_forced or choice not in (None, "auto", "none")
