"""tool_call_grammar: accepts exactly the valid calls, and the parser reads accepted text as those calls."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of
from chairlift.text.forced_call_grammar import forced_call_parser, generic_grammar, tool_call_grammar
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.json_calls import COMMAND_R, HERMES, LLAMA3, MISTRAL, PHI4
from support_forced_calls import INTEGER, TOOLS, call, compiled, takes
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, allowed_tokens, generate_output, grammar_of
from support_shares import for_each
from support_tool_formats import Merged, merged, push_all

FORMATS = (HERMES, MISTRAL, LLAMA3, COMMAND_R, PHI4, GENERIC)
EVERY_FORMAT = pytest.mark.parametrize("tool_format", FORMATS, ids=[each.name for each in FORMATS])


def read(response: Sequence[str]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call; text beside them is a fault."""
    result = merged(push_all(forced_call_parser({}), *response))
    assert result.text == ""
    return [(name, json.loads(arguments)) for name, arguments in result.calls]


@pytest.mark.share(2)
@EVERY_FORMAT
def test_a_call_of_one_of_the_tools_is_taken_and_nothing_else(tool_format: ToolFormat) -> None:
    one, other = call(tool_format, "f", '{"x": 1}'), call(tool_format, "g", '{"k": ""}')
    for several in (False, True):
        for response in (one, other, call(tool_format, "f2", '{ "x" :\n-12 }'), call(tool_format, "g", "{}")):
            assert takes(compiled(tool_format, several=several), response), response
        for response in (
            "", "Hello", " " + one, one + " ", one[:-1], one + "}", f"<tool_call>{one}",
            call(tool_format, "h", '{"x": 1}'), call(tool_format, "", "{}"), call(tool_format, "f", "{}"),
            call(tool_format, "f", '{"x": "1"}'), call(tool_format, "f", '{"x": 1, "y": 2}'),
            call(tool_format, "f", "null"), call(tool_format, "g", '{"x": 1}'), one.replace(": {", ":{"),
            one.replace("arg", "Arg").replace("par", "Par"),
        ):  # fmt: skip
            assert not takes(compiled(tool_format, several=several), response), response


@pytest.mark.share(2)
@EVERY_FORMAT
def test_only_where_several_are_allowed_another_follows(tool_format: ToolFormat) -> None:
    one, other = call(tool_format, "f", '{"x": 1}'), call(tool_format, "g", "{}")
    separator = tool_format.separator
    for response in (separator.join((one, other)), separator.join((one, one, other))):
        assert takes(compiled(tool_format), response) and not takes(compiled(tool_format, several=False), response)
    for wrong in ("", ";", ",", " ", "\n", "; " if separator == ", " else ", "):
        assert not takes(compiled(tool_format), f"{one}{wrong}{other}"), wrong
    for response in (one + separator, separator + one):
        assert not takes(compiled(tool_format), response), response


@EVERY_FORMAT
def test_one_call_alone_ends_the_output(tool_format: ToolFormat) -> None:
    grammar = compiled(tool_format, several=False)
    assert takes(grammar, call(tool_format, "g", "{}")) and allowed_tokens(grammar) <= {EOS}


def in_haste(seed: int) -> Callable[[list[int]], int]:
    """Pick any of those allowed, and every other time one that ends something, if there is one."""
    draw = random.Random(seed)

    def pick(tokens: list[int]) -> int:
        ends = [token for token in tokens if token in (*b'"}', EOS)]
        return draw.choice(ends if ends and draw.random() < 0.5 else tokens)

    return pick


@pytest.mark.full
@settings(max_examples=40)
@given(st.sampled_from(FORMATS), st.integers(0, 2**32), st.data())
def test_whatever_is_allowed_is_read_back_as_that_call(tool_format: ToolFormat, seed: int, data: st.DataObject) -> None:
    response = generate_output(compiled(tool_format), in_haste(seed)).decode()
    expected, rest = [], response
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        expected.append((value[tool_format.name_key], value[tool_format.arguments_key]))
        rest = rest[end:].removeprefix(tool_format.separator)
    assert expected and {name for name, _ in expected} <= TOOLS.keys()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(response)), max_size=6)))
    assert read([response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True)]) == expected
    assert read(list(response)) == expected


@pytest.mark.full
@settings(max_examples=40)
@given(st.sampled_from(FORMATS), st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4, unique=True))
def test_a_name_of_any_characters_round_trips(tool_format: ToolFormat, names: list[str]) -> None:
    grammar = compiled(tool_format, dict.fromkeys(names, INTEGER))
    response = tool_format.separator.join(call(tool_format, name, '{"x": 7}') for name in names)
    assert takes(grammar, response)
    assert read([response]) == [(name, {"x": 7}) for name in names]
    stranger = "".join(names) + "x"
    assert not takes(compiled(tool_format, dict.fromkeys(names, INTEGER)), call(tool_format, stranger, '{"x": 7}'))


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


@for_each("name", [each.name for each in TOOL_FORMATS.values() if each.prefill])
def test_the_prefill_begins_a_call_in_the_models_own_format(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    result = merged(push_all(tool_format.make_parser(TOOLS), tool_format.prefill, call(tool_format, "f", '{"x": 1}')))
    assert result == Merged("", (("f", '{"x": 1}'),))


def test_a_generic_answer_is_calls_or_a_response() -> None:
    one, other = call(GENERIC, "f", '{"x": 1}'), call(GENERIC, "g", "{}")
    for several in (False, True):
        grammar = generic_grammar(TOOLS, several=several)
        for answer, expected in {
            f'{{"tool_calls": [{one}]}}': True, f'{{"tool_calls": [{one}, {other}]}}': several, one: False,
            "Hello": False,
            '{"tool_calls": []}': False, '{"response": "a\\n\\"é"}': True, '{"response": ""}': True,
            '{"response": 5}': False, '{"response": "a"} ': False, f'{{"tool_calls": [{one}], "response": "a"}}': False,
        }.items():  # fmt: skip
            assert takes(grammar_of(grammar=grammar), answer) is expected, answer


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_whatever_is_allowed_in_the_generic_format_is_read_back(seed: int) -> None:
    answer = generate_output(grammar_of(grammar=generic_grammar(TOOLS, several=True)), in_haste(seed)).decode()
    result, value = merged(push_all(GENERIC.make_parser(TOOLS), *answer)), json.loads(answer)
    assert result.text == value.get("response", "")
    calls = [(name, json.loads(arguments)) for name, arguments in result.calls]
    assert calls == [(each["name"], each["arguments"]) for each in value.get("tool_calls", [])]
