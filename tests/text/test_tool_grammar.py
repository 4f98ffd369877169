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
from chairlift.engine.structured.llguidance_source import WHITESPACE as OF_OTHER_STRUCTURES
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
from support_structure import EOS, VOCAB_SIZE, VOCABULARY, allowed, grammar_of, written

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
WORDS = {"type": "object", "additionalProperties": {"enum": ['a}b"; {', "é\n", ""]}}
TOOLS = {"f": INTEGER, "f2": INTEGER, "g": WORDS}
SAID = {HERMES: "arguments", MISTRAL: "arguments", LLAMA3: "parameters"}


def compiled(notation: str, schemas: Mapping[str, Any] = TOOLS, *, several: bool = True) -> Grammar:
    return grammar_of(grammar=tool_call_grammar(notation, schemas, several=several))


def takes(grammar: Grammar, response: str) -> bool:
    """Whether this can be the whole output."""
    for byte in response.encode():
        if byte not in allowed(grammar):
            return False
        grammar.advance(byte)
    return grammar.is_terminated or EOS in allowed(grammar)


def call(notation: str, name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{SAID[notation]}": {arguments}}}'


def read(response: Sequence[str]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call; text beside them is a fault."""
    reader = ToolCallParser(READ_AS)
    calls: list[tuple[str, str]] = []
    for piece in [*(piece for delta in response for piece in reader.push(delta)), *reader.flush()]:
        match piece:
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallArguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case TextDelta(text):
                raise AssertionError(f"this was text: {text!r}")
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("notation", START_MARKERS)
def test_a_call_of_one_of_the_tools_is_taken_and_nothing_else(notation: str) -> None:
    one, other = call(notation, "f", '{"x": 1}'), call(notation, "g", '{"k": ""}')
    for several in (False, True):
        for response in (one, other, call(notation, "f2", '{ "x" :\n-12 }'), call(notation, "g", "{}")):
            assert takes(compiled(notation, several=several), response), response
        for response in (
            "", "Hello", " " + one, one + " ", one[:-1], one + "}", START_MARKERS[notation] + one,
            call(notation, "h", '{"x": 1}'), call(notation, "", "{}"), call(notation, "f", "{}"),
            call(notation, "f", '{"x": "1"}'), call(notation, "f", '{"x": 1, "y": 2}'), call(notation, "f", "null"),
            call(notation, "g", '{"x": 1}'), one.replace(": {", ":{"), one.replace("arg", "Arg").replace("par", "Par"),
        ):  # fmt: skip
            assert not takes(compiled(notation, several=several), response), response


@pytest.mark.parametrize("notation", START_MARKERS)
def test_only_where_several_are_allowed_another_follows(notation: str) -> None:
    one, other = call(notation, "f", '{"x": 1}'), call(notation, "g", "{}")
    for response in (f"{one}; {other}", f"{one}; {one}; {other}"):
        assert takes(compiled(notation), response) and not takes(compiled(notation, several=False), response)
    for response in (f"{one}{other}", f"{one};{other}", f"{one}, {other}", f"{one}; ", f"; {one}", f"{one}\n{other}"):
        assert not takes(compiled(notation), response), response


@pytest.mark.parametrize("notation", START_MARKERS)
def test_one_call_alone_ends_the_output(notation: str) -> None:
    grammar = compiled(notation, several=False)
    assert takes(grammar, call(notation, "g", "{}")) and allowed(grammar) <= {EOS}


def in_haste(seed: int) -> Callable[[list[int]], int]:
    """Pick any of those allowed, and every other time one that ends something, if there is one."""
    draw = random.Random(seed)

    def pick(tokens: list[int]) -> int:
        ends = [token for token in tokens if token in (*b'"}', EOS)]
        return draw.choice(ends if ends and draw.random() < 0.5 else tokens)

    return pick


@settings(max_examples=40)
@given(st.sampled_from(list(START_MARKERS)), st.integers(0, 2**32), st.data())
def test_whatever_is_allowed_is_read_back_as_that_call(notation: str, seed: int, data: st.DataObject) -> None:
    response = written(compiled(notation), in_haste(seed)).decode()
    expected, rest = [], response
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        expected.append((value["name"], value[SAID[notation]]))
        rest = rest[end:].removeprefix("; ")
    assert expected and {name for name, _ in expected} <= TOOLS.keys()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(response)), max_size=6)))
    assert read([response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True)]) == expected
    assert read(list(response)) == expected


@settings(max_examples=40)
@given(
    st.sampled_from(list(START_MARKERS)), st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4, unique=True)
)
def test_a_name_of_any_characters_round_trips(notation: str, names: list[str]) -> None:
    grammar = compiled(notation, dict.fromkeys(names, INTEGER))
    response = "; ".join(call(notation, name, '{"x": 7}') for name in names)
    assert takes(grammar, response)
    assert read([response]) == [(name, {"x": 7}) for name in names]
    stranger = "".join(names) + "x"
    assert not takes(compiled(notation, dict.fromkeys(names, INTEGER)), call(notation, stranger, '{"x": 7}'))


def test_white_space_between_the_parts_of_arguments_has_an_end() -> None:
    """A model that writes nothing else would do so until its last token."""
    assert WHITESPACE == OF_OTHER_STRUCTURES
    for count, fits in ((40, True), (41, False)):
        for arguments in ("{" + " " * count + "}", '{"k"' + "\n" * count + ': ""}'):
            assert takes(compiled(HERMES), call(HERMES, "g", arguments)) is fits


def test_each_schema_has_its_own_definitions() -> None:
    def schema(kind: str) -> dict[str, Any]:
        inner = {"a": {"$ref": "#/$defs/q"}}
        return {"type": "object", "properties": inner, "required": ["a"], "$defs": {"q": {"type": kind}}}

    schemas = {"f": schema("integer"), "g": schema("boolean")}
    for name, arguments, fits in (("f", '{"a": 1}', True), ("g", '{"a": 1}', False), ("g", '{"a": true}', True)):
        assert takes(compiled(HERMES, schemas), call(HERMES, name, arguments)) is fits


def test_a_keyword_that_cannot_be_kept_is_refused() -> None:
    grammar = tool_call_grammar(HERMES, {"f": {"type": "object", "not": {"required": ["x"]}}}, several=True)
    matcher = make_matcher(source_of(StructuredOutput(grammar=grammar)), make_tokenizer(VOCABULARY, VOCAB_SIZE))
    assert matcher.is_error()


@pytest.mark.parametrize("notation", START_MARKERS)
def test_what_the_prompt_ends_with_and_the_answer_together_are_a_call_in_the_models_notation(notation: str) -> None:
    reader = ToolCallParser(notation)
    pieces = [*reader.push(prefill(notation) + call(notation, "f", '{"x": 1}')), *reader.flush()]
    assert pieces == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x": 1}')]
