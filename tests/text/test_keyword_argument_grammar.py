"""Calls with keyword arguments (Python calls, Gemma): the grammar of forced calls, as the parser reads them."""

import json
from typing import Any

import pytest

from chairlift.text.forced_call_grammar import tool_call_grammar
from chairlift.text.tagged_argument_grammar import NoTaggedArgumentsError
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.gemma import GEMMA, GEMMA4
from chairlift.text.tool_formats.pythonic import PYTHONIC, PYTHONIC_MARKED
from support_forced_calls import compiled, takes
from support_grammars import generate_output, random_pick
from support_shares import for_each
from support_tool_formats import merged, push_all

TOOLS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"}, "s": {"type": "string"}, "e": {"enum": ["x y", "z"]},
            "l": {"type": "array", "items": {"$ref": "#/$defs/word"}},
        },
        "required": ["s"], "additionalProperties": False, "$defs": {"word": {"type": "string"}},
    },
    "g": {"type": "object"},
    "none": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip
LFM, OLMO = PYTHONIC_MARKED["<|tool_call_start|>"], PYTHONIC_MARKED["<function_calls>"]
QUOTES = {GEMMA.name: "<escape>", GEMMA4.name: '<|"|>'}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("f", {"s": ""}), ("f", {"s": 'é "b"\n,)]}'}), ("f", {"a": -3, "s": "x", "e": "x y", "l": ["a]", "b\"}", ""]}),
    ("f", {"s": "x", "l": []}), ("f", {"a": 0, "s": "x"}), ("g", {}), ("none", {}),
]  # fmt: skip


def call_of(tool_format: ToolFormat, name: str, arguments: dict[str, Any], *, ends: bool = True) -> str:
    """Return a call as a model of this format writes it."""
    notation = tool_format.notation
    assert notation is not None and notation.keyword_arguments is not None
    quote, keywords = QUOTES.get(tool_format.name, ""), notation.keyword_arguments
    texts = []
    for key, value in arguments.items():
        has_quotes = quote and isinstance(value, str)
        text = f"{quote}{value}{quote}" if has_quotes else json.dumps(value, ensure_ascii=False)
        texts.append(f"{key}{keywords.after_key}{text}")
    call = (
        f"{notation.before_name}{name}{notation.after_name}{keywords.separator.join(texts)}{notation.after_arguments}"
    )
    return f"{notation.begin}{call}{notation.end}" if ends else call


FORMATS = pytest.mark.parametrize("tool_format", [PYTHONIC, LFM, OLMO, GEMMA, GEMMA4])


@pytest.mark.share(2)
@FORMATS
def test_calls_are_enforced_and_read(tool_format: ToolFormat) -> None:
    for name, arguments in CASES:
        answer = call_of(tool_format, name, arguments)
        assert takes(compiled(tool_format, TOOLS), answer), answer
        result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
        assert [(each, json.loads(text)) for each, text in result.calls] == [(name, arguments)] and not result.text
    any_object = call_of(tool_format, "g", {"k": {"l": ["}", 'a"']}, "m": 1})
    assert takes(compiled(tool_format, TOOLS), any_object)
    [(_, text)] = merged(push_all(tool_format.make_parser(TOOLS), *any_object)).calls
    assert json.loads(text) == {"k": {"l": ["}", 'a"']}, "m": 1}


@pytest.mark.share(2)
@FORMATS
def test_other_calls_are_refused(tool_format: ToolFormat) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("f", {}), ("f", {"a": 1}), ("f", {"s": "x", "a": 1}), ("f", {"a": "x", "s": "x"}), ("f", {"s": "x", "b": 1}),
        ("f", {"s": "x", "e": "x"}), ("f", {"s": "x", "l": [1]}), ("h", {}), ("none", {"x": 1}), ("g", {"1": 2}),
        ("g", {"a b": 2}), ("f", {"s": 5}),
    ]  # fmt: skip
    for name, arguments in wrong:
        answer = call_of(tool_format, name, arguments)
        assert not takes(compiled(tool_format, TOOLS), answer), answer
    call = call_of(tool_format, "f", {"s": "x"})
    for other in (
        call[1:],
        call + "x",
        call[:-1] + call,
        f"Hello {call}",
        '{"name": "f", "parameters": {"s": "x"}}',
        "",
    ):
        assert not takes(compiled(tool_format, TOOLS), other), other


@FORMATS
def test_only_where_several_are_allowed_another_follows(tool_format: ToolFormat) -> None:
    notation = tool_format.notation
    assert notation is not None
    calls = [call_of(tool_format, name, {}, ends=False) for name in ("g", "none")]
    both = f"{notation.begin}{(notation.separator or '').join(calls)}{notation.end}"
    assert takes(compiled(tool_format, TOOLS), both)
    assert not takes(compiled(tool_format, TOOLS, several=False), both)
    result = merged(push_all(tool_format.make_parser(TOOLS), *both))
    assert result.calls == (("g", "{}"), ("none", "{}")) and not result.text


@pytest.mark.share(2)
@FORMATS
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_allowed_is_read(tool_format: ToolFormat, seed: int) -> None:
    tools = {"f": TOOLS["f"]}
    pick = random_pick(seed)
    try:
        answer = generate_output(compiled(tool_format, tools, several=False), pick).decode()
    except AssertionError:  # a random string may be long
        return
    result = merged(push_all(tool_format.make_parser(tools), *answer))
    [(name, text)] = result.calls
    arguments = json.loads(text)
    assert name == "f" and isinstance(arguments["s"], str) and not result.text.strip(), answer
    assert arguments.get("e", "z") in ("x y", "z") and all(isinstance(each, str) for each in arguments.get("l", ()))


@for_each("schema", [
    {"type": "object", "properties": {"a b": {}}}, {"anyOf": [{"type": "object"}]},
    {"type": "object", "minProperties": 1},
    {"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object", "required": ["x"]},
])  # fmt: skip
def test_a_schema_that_keywords_cannot_express(schema: dict[str, Any]) -> None:
    for tool_format in (PYTHONIC, GEMMA4):
        with pytest.raises(NoTaggedArgumentsError):
            tool_call_grammar(tool_format, {"f": schema}, several=True)


def test_a_string_with_a_pattern_is_no_string_between_markers() -> None:
    schema = {"type": "object", "properties": {"s": {"type": "string", "pattern": "a+"}}}
    with pytest.raises(NoTaggedArgumentsError):
        tool_call_grammar(GEMMA4, {"f": schema}, several=True)
    assert takes(compiled(PYTHONIC, {"f": schema}), '[f(s="aa")]')
    assert not takes(compiled(PYTHONIC, {"f": schema}), '[f(s="b")]')
