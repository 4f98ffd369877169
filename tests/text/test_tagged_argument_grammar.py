"""Calls with a tag for each argument (GLM, Qwen3-Coder, MiniMax): the grammar of their values, as the parser reads."""

import json
from typing import Any

import pytest

from chairlift.text.optional_call_grammar import optional_call_grammar
from chairlift.text.tagged_argument_grammar import NoTaggedArgumentsError
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.glm import GLM
from chairlift.text.tool_formats.xml_calls import MINIMAX, QWEN_CODER
from support_call_grammars import compiled, random_answer, takes_answer
from support_shares import for_each
from support_tool_formats import Merged, check_every_split, merged, push_all

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name."},
        "unit": {"enum": ["C", "F", "deg. K/2"]},
        "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string"}},
}
NONE = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: dict[str, Any] = {"f": CITY, "g": {"type": "object"}, "none": NONE}
SHORT = {"city": "Oslo", "days": 2}
WHOLE = {"city": 'A "b"\n{</b>é', "unit": "deg. K/2", "days": -3, "tags": ["x", "y"], "note": ""}
TAGGED = (GLM, QWEN_CODER, MINIMAX)
EVERY_CASE = pytest.mark.parametrize(
    ("tool_format", "tokens"), [(each, tokens) for each in TAGGED for tokens in (True, False)]
)


def call_of(tool_format: ToolFormat, name: str, arguments: dict[str, Any], *, between: str = "\n") -> str:
    """Return a call as a model of this format writes it; `between` is the white space between tags."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    if tool_format is GLM:
        parts = [f"<arg_key>{key}</arg_key>{between}<arg_value>{text}</arg_value>" for key, text in texts.items()]
        return between.join((f"<tool_call>{name}", *parts, "</tool_call>"))
    if tool_format is MINIMAX:
        parts = [f'<parameter name="{key}">{text}</parameter>' for key, text in texts.items()]
        ends = "</invoke>", "</minimax:tool_call>"
        return between.join(("<minimax:tool_call>", f'<invoke name="{name}">', *parts, *ends))
    parts = [f"<parameter={key}>{between}{text}{between}</parameter>" for key, text in texts.items()]
    return between.join(("<tool_call>", f"<function={name}>", *parts, "</function>", "</tool_call>"))


@pytest.mark.share(2)
@EVERY_CASE
def test_tagged_calls_are_enforced_behind_any_text_and_read(tool_format: ToolFormat, tokens: bool) -> None:
    for text in ("", "I look.\n", "\n\nTwo <b> [lines] {}\n"):
        for name, arguments in (("f", SHORT), ("f", WHOLE), ("g", {}), ("g", {"any": "<b>"}), ("none", {})):
            for between in ("\n", ""):
                answer = text + call_of(tool_format, name, arguments, between=between)
                assert takes_answer(tool_format, TOOLS, answer, tokens=tokens), answer
                result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
                assert [(each, json.loads(read)) for each, read in result.calls] == [(name, arguments)]
                assert result.text.strip() == text.strip()
    for free in ("Hello.", "", "<tool_cal", "f {"):
        assert takes_answer(tool_format, TOOLS, free, tokens=tokens)


@pytest.mark.share(2)
@EVERY_CASE
def test_a_call_whose_values_do_not_fit_the_schema_is_refused(tool_format: ToolFormat, tokens: bool) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("f", {}), ("f", {"city": "Oslo"}), ("f", {"city": "Oslo", "days": "two"}), ("f", {"city": "x", "days": 1.5}),
        ("f", {"city": "Oslo", "unit": "K", "days": 1}), ("f", {"city": "Oslo", "days": 1, "tags": [1]}),
        ("f", {"days": 1, "city": "Oslo"}), ("f", {**SHORT, "other": 1}), ("f", {**SHORT, "tags": "x"}), ("h", {}),
        ("none", {"x": 1}), ("f", {"city": "a</tool_call>b</function></invoke>", "days": 1}),
    ]  # fmt: skip
    for name, arguments in wrong:
        answer = call_of(tool_format, name, arguments)
        assert not takes_answer(tool_format, TOOLS, answer, tokens=tokens), answer
    whole = call_of(tool_format, "f", SHORT)
    for bad in (whole + "more", whole[:-1], whole[: len(whole) // 2]):
        assert not takes_answer(tool_format, TOOLS, bad, tokens=tokens), bad


@pytest.mark.share(3)
@EVERY_CASE
def test_several_tagged_calls_are_enforced_and_read(tool_format: ToolFormat, tokens: bool) -> None:
    first, second = call_of(tool_format, "f", SHORT), call_of(tool_format, "none", {})
    answer = f"{first}\n{second}"
    if tool_format is MINIMAX:
        answer = first.replace("</minimax:tool_call>", "") + second.removeprefix("<minimax:tool_call>\n")
    assert takes_answer(tool_format, TOOLS, answer, tokens=tokens)
    assert not takes_answer(tool_format, TOOLS, answer, tokens=tokens, several=False)
    assert not takes_answer(tool_format, TOOLS, answer.replace("none", "f"), tokens=tokens)
    result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
    assert [name for name, _ in result.calls] == ["f", "none"] and json.loads(result.calls[0][1]) == SHORT


@pytest.mark.share(3)
@EVERY_CASE
def test_a_tagged_call_or_the_json_of_the_client(tool_format: ToolFormat, tokens: bool) -> None:
    options: dict[str, Any] = {"tokens": tokens, "answer": {"type": "object", "required": ["y"]}}
    assert takes_answer(tool_format, TOOLS, call_of(tool_format, "f", SHORT), **options)
    assert takes_answer(tool_format, TOOLS, '{"y": "<tool"}', **options)
    for wrong in ("Hello.", "{}", "", call_of(tool_format, "f", {})):
        assert not takes_answer(tool_format, TOOLS, wrong, **options), wrong


@for_each(("tool_format", "answer"), [
    (GLM, 'f\n{"city": 1}'), (GLM, '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    (QWEN_CODER, "<function=f></function>"), (QWEN_CODER, '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    (QWEN_CODER, "<seed:tool_call><function=f></function></seed:tool_call>"), (MINIMAX, '<invoke name="f"></invoke>'),
])  # fmt: skip
def test_no_tagged_call_that_the_parser_reads_is_free_text(tool_format: ToolFormat, answer: str) -> None:
    assert merged(push_all(tool_format.make_parser(TOOLS), *answer)).calls
    for tokens in (True, False):
        assert not takes_answer(tool_format, TOOLS, answer, tokens=tokens)


@pytest.mark.parametrize("tokens", [True, False])
def test_seed_has_a_section_of_its_own(tokens: bool) -> None:
    answer = call_of(QWEN_CODER, "f", SHORT).replace("tool_call>", "seed:tool_call>")
    assert takes_answer(QWEN_CODER, TOOLS, answer, tokens=tokens)
    assert merged(push_all(QWEN_CODER.make_parser(TOOLS), *answer)).calls[0][0] == "f"


@pytest.mark.share(2)
@pytest.mark.parametrize("tool_format", TAGGED, ids=lambda each: each.name)
def test_the_parser_reads_whatever_tagged_calls_the_grammar_allows(tool_format: ToolFormat) -> None:
    values = {
        "unit": {"enum": ["C", "deg. K"]},
        "days": {"type": "integer"},
        "l": {"items": {"type": "null"}, "type": "array"},
    }
    tools = {"f": {"type": "object", "properties": values, "required": ["days"]}, "none": NONE}
    begin = call_of(tool_format, "NAME", {}, between="").partition("NAME")[0]
    for seed in range(12):
        answer = random_answer(compiled(tool_format, tools, tokens=False), begin, seed)
        result = merged(push_all(tool_format.make_parser(tools), *answer))
        assert result.calls and not result.text.strip(), answer
        for name, text in result.calls:
            arguments = json.loads(text)
            assert isinstance(arguments.get("days"), int) == (name == "f"), answer
            assert arguments.get("unit", "C") in ("C", "deg. K") and set(arguments.get("l", ())) <= {None}, answer


S = {"type": "string"}


@for_each("schema", [
    {"type": "object", "properties": {"s": {"type": "string", "pattern": "^a$"}}},
    {"type": "object", "properties": {"s": {"enum": ["<b>"]}}},
    {"type": "object", "properties": {"s": {"enum": [" a"]}}},
    {"type": "object", "properties": {"s": {"anyOf": [S, {"enum": ["x"]}]}}},
    {"type": "object", "properties": {"a b": S}}, {"type": "object", "properties": {"a": S}, "required": ["b"]},
    {"type": "object", "properties": {"a": S}, "minProperties": 1}, {"type": "object", "additionalProperties": S},
    {"anyOf": [{"type": "object"}]},
])  # fmt: skip
def test_what_tags_cannot_express_is_said(schema: dict[str, Any]) -> None:
    for tool_format in TAGGED:
        with pytest.raises(NoTaggedArgumentsError):
            optional_call_grammar(tool_format, {"f": schema}, several=True)


def test_the_parsers_schema_says_which_values_are_strings() -> None:
    """A rewritten schema may call a value a string where the one of the request refers to it: the parser sees JSON."""
    parsed = {"f": {"type": "object", "properties": {"s": {"$ref": "#/$defs/s"}}, "$defs": {"s": S}}}
    lowered = {"f": {"type": "object", "properties": {"s": S}, "additionalProperties": False}}
    quoted, raw = call_of(GLM, "f", {"s": '"5"'}), call_of(GLM, "f", {"s": "5"})
    assert takes_answer(GLM, lowered, quoted, parsed=parsed) and not takes_answer(GLM, lowered, raw, parsed=parsed)
    assert takes_answer(GLM, lowered, raw)
    assert merged(push_all(GLM.make_parser(parsed), *quoted)).calls == (("f", '{"s": "5"}'),)


LISTS = {"f": {"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}, "any": {}}}}
ENDS = ("</arg_value>", "</parameter>", "</tool_call>", "</function>", "</invoke>", "</minimax:tool_call>",
        "<tool_call>", "<function=f>", '<invoke name="f">')  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("tool_format", TAGGED, ids=lambda each: each.name)
def test_a_string_in_json_may_contain_the_ends_of_its_value_and_call(tool_format: ToolFormat) -> None:
    for end in ENDS:
        for values in ([end], [f'\\"{end}'], ["a", f"{end}b{end}"]):
            call = call_of(tool_format, "f", {"l": values})
            assert takes_answer(tool_format, LISTS, call, tokens=False)
            result = Merged(calls=(("f", json.dumps({"l": values})),))
            check_every_split(tool_format, call, result, schemas=LISTS)


@pytest.mark.share(2)
@pytest.mark.parametrize("tool_format", TAGGED, ids=lambda each: each.name)
@pytest.mark.parametrize("text", ['["a', '{"a": [1}', '["a]\n', '[x]"', '"a" b', "[", '{"a": "b'])
def test_a_value_that_is_no_json_ends_at_the_first_end_tag(tool_format: ToolFormat, text: str) -> None:
    call = call_of(tool_format, "f", {"any": "TEXT", "l": "TEXT"}, between="").replace("TEXT", text)
    expected = json.dumps({"any": text.removesuffix("\n"), "l": text.removesuffix("\n")})
    check_every_split(tool_format, call, Merged(calls=(("f", expected),)), schemas=LISTS)


def test_null_is_no_text_of_a_string() -> None:
    schema = {"type": "object", "properties": {"s": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}}}
    assert takes_answer(GLM, {"f": schema}, call_of(GLM, "f", {"s": "a"}))
    assert not takes_answer(GLM, {"f": schema}, call_of(GLM, "f", {"s": None}))
