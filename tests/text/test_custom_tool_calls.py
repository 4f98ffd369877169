"""Custom tools: a function stands for each, and the input is read from the arguments as they come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.custom_tool_calls import CustomCallParser, InputReader, function_of
from chairlift.text.tool_formats.json_calls import HERMES
from chairlift.text.tool_formats.tool_call_parser import (
    CustomCallInput,
    CustomCallStart,
    Piece,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from support_shares import for_each
from support_tool_formats import halves


def read(*parts: str) -> str:
    reader = InputReader()
    return "".join([*map(reader.push, parts), reader.flush()])


@for_each(
    ("arguments", "expected"),
    [
        ('{"input": "a b"}', "a b"), (' {\n"input" :\t"" }', ""),
        ('{"input":"\\n\\"\\\\\\/\\u00e9\\ud83d\\ude00"}', '\n"\\/é😀'),
        ('{"input": "\\ud83d!"}', "?!"), ('{"input": "\\ud83d\\n"}', "?\n"), ('{"input": "a", "more": "b"}', "a"),
        ('{"input": "cut', "cut"), ('{"input": "cut\\', "cut"),
        ('{"input": "cut\\u00', "cut"), ('{"inp', '{"inp'), ("", ""),
        ('{"code": "a"}', "a"), ('{"code": "a", "b": "c"}', '{"code": "a", "b": "c"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('"a"', "a"), ("[1]", "[1]"), ("plain text", "plain text"),
        ('{"in put": "a"}', "a"), ('{"input": "\\q"}', "\\q"),
    ],
)  # fmt: skip
def test_the_input_is_read_in_every_split(arguments: str, expected: str) -> None:
    for parts in ((arguments,), tuple(arguments), *halves(arguments)):
        assert read(*parts) == expected, parts


@pytest.mark.full
@given(st.text(), st.booleans())
def test_any_text_is_read_back(text: str, ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert read(*arguments) == text == read(arguments)


def test_text_comes_as_soon_as_it_is_certain() -> None:
    reader = InputReader()
    assert [reader.push(part) for part in ('{"input": "a', "b", "c\\", "n", 'd"', "}")] == [
        "a",
        "b",
        "c",
        "\n",
        "d",
        "",
    ]


def test_only_calls_of_custom_tools_change() -> None:
    calls = [{"name": "f", "arguments": {"input": "1"}}, {"name": "patch", "arguments": {"input": "2\n"}}]
    answer = "Hm." + "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in [*calls, calls[1], calls[0]])
    parser = CustomCallParser(HERMES.make_parser({}), ["patch"])
    pieces: list[Piece] = [*(piece for char in answer for piece in parser.push(char)), *parser.flush()]
    starts = [piece for piece in pieces if isinstance(piece, ToolCallStart | CustomCallStart)]
    assert starts == [
        ToolCallStart(0, "f"), CustomCallStart(1, "patch"), CustomCallStart(2, "patch"), ToolCallStart(3, "f"),
    ]  # fmt: skip
    inputs = dict.fromkeys(range(4), "")
    for piece in pieces:
        if isinstance(piece, CustomCallInput | ToolCallArguments):
            inputs[piece.index] += piece.text
    assert inputs == {0: '{"input": "1"}', 1: "2\n", 2: "2\n", 3: '{"input": "1"}'}
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == "Hm."


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        (None, ""), ({"type": "text"}, ""), ({"type": "grammar", "syntax": "lark", "definition": "start: X"}, "lark"),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "start: X"}}, "regex"),
    ],
)  # fmt: skip
def test_a_function_has_the_grammar_in_its_description(form: Any, grammar: str) -> None:
    function = function_of({"name": "patch", "description": "Edits files.", "format": form})
    assert function["description"].startswith("Edits files.") and [*function["parameters"]["properties"]] == ["input"]
    assert (
        function["description"].endswith(f"({grammar}):\n\nstart: X")
        if grammar
        else "\n" not in function["description"]
    )
    assert function_of({"name": "patch"})["description"] == ""
