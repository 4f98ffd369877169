"""tool_call_grammar: accepts exactly the valid calls, and the parser reads accepted text as those calls."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar import Grammar
from chairlift.engine.structured.llguidance_source import WHITESPACE as JSON_SCHEMA_WHITESPACE
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer, source_of
from chairlift.text.tool_grammar import READ_AS, WHITESPACE, prefill, tool_call_grammar
from chairlift.text.tool_parser import (
    HERMES,
    LLAMA3,
    MISTRAL,
    START_MARKERS,
    TextDelta,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
)
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, allowed_tokens, generate_output, grammar_of

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
ENUM = {"type": "object", "additionalProperties": {"enum": ['a}b"; {', "é\n", ""]}}
TOOLS = {"f": INTEGER, "f2": INTEGER, "g": ENUM}
ARGUMENT_KEYS = {HERMES: "arguments", MISTRAL: "arguments", LLAMA3: "parameters"}


def compiled(tool_format: str, schemas: Mapping[str, Any] = TOOLS, *, several: bool = True) -> Grammar:
    return grammar_of(grammar=tool_call_grammar(tool_format, schemas, several=several))


def accepts(grammar: Grammar, response: str) -> bool:
    """Whether the grammar accepts a whole output."""
    for byte in response.encode():
        if byte not in allowed_tokens(grammar):
            return False
        grammar.advance(byte)
    return grammar.is_terminated or EOS in allowed_tokens(grammar)


def call(tool_format: str, name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{ARGUMENT_KEYS[tool_format]}": {arguments}}}'


def read_calls(response: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the name and arguments of each call; fails if there is text besides the calls."""
    parser = ToolCallParser(READ_AS)
    calls: list[tuple[str, str]] = []
    for part in [*(part for delta in response for part in parser.push(delta)), *parser.flush()]:
        match part:
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallArguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case TextDelta(text):
                raise AssertionError(f"this was text: {text!r}")
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("tool_format", START_MARKERS)
def test_a_call_of_one_of_the_tools_is_taken_and_nothing_else(tool_format: str) -> None:
    first, other = call(tool_format, "f", '{"x": 1}'), call(tool_format, "g", '{"k": ""}')
    for several in (False, True):
        for response in (first, other, call(tool_format, "f2", '{ "x" :\n-12 }'), call(tool_format, "g", "{}")):
            assert accepts(compiled(tool_format, several=several), response), response
        for response in (
            "", "Hello", " " + first, first + " ", first[:-1], first + "}", START_MARKERS[tool_format] + first,
            call(tool_format, "h", '{"x": 1}'), call(tool_format, "", "{}"), call(tool_format, "f", "{}"),
            call(tool_format, "f", '{"x": "1"}'), call(tool_format, "f", '{"x": 1, "y": 2}'),
            call(tool_format, "f", "null"), call(tool_format, "g", '{"x": 1}'), first.replace(": {", ":{"),
            first.replace("arg", "Arg").replace("par", "Par"),
        ):  # fmt: skip
            assert not accepts(compiled(tool_format, several=several), response), response


@pytest.mark.parametrize("tool_format", START_MARKERS)
def test_only_where_several_are_allowed_another_follows(tool_format: str) -> None:
    first, other = call(tool_format, "f", '{"x": 1}'), call(tool_format, "g", "{}")
    for response in (f"{first}; {other}", f"{first}; {first}; {other}"):
        assert accepts(compiled(tool_format), response) and not accepts(compiled(tool_format, several=False), response)
    for response in (
        f"{first}{other}",
        f"{first};{other}",
        f"{first}, {other}",
        f"{first}; ",
        f"; {first}",
        f"{first}\n{other}",
    ):
        assert not accepts(compiled(tool_format), response), response


@pytest.mark.parametrize("tool_format", START_MARKERS)
def test_one_call_alone_ends_the_output(tool_format: str) -> None:
    grammar = compiled(tool_format, several=False)
    assert accepts(grammar, call(tool_format, "g", "{}")) and allowed_tokens(grammar) <= {EOS}


def short_outputs(seed: int) -> Callable[[list[int]], int]:
    """Return a function that picks an allowed token, in half of the calls one that ends a value if there is one."""
    rng = random.Random(seed)

    def pick(tokens: list[int]) -> int:
        ends = [token for token in tokens if token in (*b'"}', EOS)]
        return rng.choice(ends if ends and rng.random() < 0.5 else tokens)

    return pick


@settings(max_examples=40)
@given(st.sampled_from(list(START_MARKERS)), st.integers(0, 2**32), st.data())
def test_whatever_is_allowed_is_read_back_as_that_call(tool_format: str, seed: int, data: st.DataObject) -> None:
    response = generate_output(compiled(tool_format), short_outputs(seed)).decode()
    expected, rest = [], response
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        expected.append((value["name"], value[ARGUMENT_KEYS[tool_format]]))
        rest = rest[end:].removeprefix("; ")
    assert expected and {name for name, _ in expected} <= TOOLS.keys()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(response)), max_size=6)))
    assert read_calls([response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True)]) == expected
    assert read_calls(list(response)) == expected


@settings(max_examples=40)
@given(
    st.sampled_from(list(START_MARKERS)), st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4, unique=True)
)
def test_a_name_of_any_characters_round_trips(tool_format: str, names: list[str]) -> None:
    grammar = compiled(tool_format, dict.fromkeys(names, INTEGER))
    response = "; ".join(call(tool_format, name, '{"x": 7}') for name in names)
    assert accepts(grammar, response)
    assert read_calls([response]) == [(name, {"x": 7}) for name in names]
    unknown_name = "".join(names) + "x"
    assert not accepts(
        compiled(tool_format, dict.fromkeys(names, INTEGER)), call(tool_format, unknown_name, '{"x": 7}')
    )


def test_white_space_between_the_parts_of_arguments_has_an_end() -> None:
    """Otherwise a model could generate white space until its last token."""
    assert WHITESPACE == JSON_SCHEMA_WHITESPACE
    for count, fits in ((40, True), (41, False)):
        for arguments in ("{" + " " * count + "}", '{"k"' + "\n" * count + ': ""}'):
            assert accepts(compiled(HERMES), call(HERMES, "g", arguments)) is fits


def test_each_schema_has_its_own_definitions() -> None:
    def schema(kind: str) -> dict[str, Any]:
        inner = {"a": {"$ref": "#/$defs/q"}}
        return {"type": "object", "properties": inner, "required": ["a"], "$defs": {"q": {"type": kind}}}

    schemas = {"f": schema("integer"), "g": schema("boolean")}
    for name, arguments, fits in (("f", '{"a": 1}', True), ("g", '{"a": 1}', False), ("g", '{"a": true}', True)):
        assert accepts(compiled(HERMES, schemas), call(HERMES, name, arguments)) is fits


def test_a_keyword_that_cannot_be_kept_is_refused() -> None:
    grammar = tool_call_grammar(HERMES, {"f": {"type": "object", "not": {"required": ["x"]}}}, several=True)
    matcher = make_matcher(source_of(StructuredOutput(grammar=grammar)), make_tokenizer(VOCABULARY, VOCAB_SIZE))
    assert matcher.is_error()


@pytest.mark.parametrize("tool_format", START_MARKERS)
def test_what_the_prompt_ends_with_and_the_answer_together_are_a_call_in_the_models_notation(tool_format: str) -> None:
    parser = ToolCallParser(tool_format)
    parts = [*parser.push(prefill(tool_format) + call(tool_format, "f", '{"x": 1}')), *parser.flush()]
    assert parts == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x": 1}')]
