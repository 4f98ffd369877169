"""XmlCalls: the arguments of tags become JSON, by the tool's schema or by the tag."""

import json
from typing import Any

import pytest

from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.tool_call_parser import ToolCallArguments, ToolCallStart
from chairlift.text.tool_formats.xml_calls import DEEPSEEK_DSML, MINIMAX, QWEN_CODER, argument_value, is_string_schema
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, check_every_split, read

STRING = {"type": "string"}


def qwen(name: str, **arguments: str) -> str:
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


Y, Z = 'a"}\n</tool_call>é', '[1, {"k": null}]'
FXS, GYZ = ("f", '{"x": 1, "s": "1"}'), ("g", '{"y": "a\\"}\\n</tool_call>é", "z": [1, {"k": null}]}')


def invoke(tag: str, name: str, **arguments: str) -> str:
    tags = "".join(f'<{tag}parameter name="{key}">{value}</{tag}parameter>\n' for key, value in arguments.items())
    return f'<{tag}invoke name="{name}">\n{tags}</{tag}invoke>\n'


MINIMAX_ANSWER = f"<minimax:tool_call>\n{invoke('', 'f', x='1', s='1')}{invoke('', 'g', y=Y, z=Z)}</minimax:tool_call>"
DSML = "｜DSML｜"
DSML_ANSWER = (
    f"<{DSML}function_calls>\n{invoke(DSML, 'f', x='1', s='1')}{invoke(DSML, 'g', y=Y, z=Z)}</{DSML}function_calls>"
)

ANSWERS: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (QWEN_CODER, "Hello <function", "Hello <function", []),
    (QWEN_CODER, qwen("f", x="1", s="1"), "", [FXS]),
    (QWEN_CODER, f"I look.\n{qwen('f', x='1', s='1')}\n{qwen('g', y=Y, z=Z)}\nDone.", "I look.\n\nDone.", [FXS, GYZ]),
    (QWEN_CODER, qwen("f"), "", [("f", "{}")]),
    (QWEN_CODER, "<function=f><parameter=s>a\n\nb</parameter></function>", "", [("f", '{"s": "a\\n\\nb"}')]),
    (QWEN_CODER, "<tool_call>\nno</tool_call>", "<tool_call>\nno</tool_call>", []),
    (QWEN_CODER, "<function=>", "<function=>", []),
    (QWEN_CODER, "<seed:tool_call><function=f></function></seed:tool_call>", "", [("f", "{}")]),
    (MINIMAX, f"I look.\n{MINIMAX_ANSWER}", "I look.\n", [FXS, GYZ]),
    (MINIMAX, "<minimax:tool_call>\n<invoke", "<minimax:tool_call>\n<invoke", []),
    (DEEPSEEK_DSML, f"I look.\n\n{DSML_ANSWER}", "I look.\n\n", [FXS, GYZ]),
    (
        DEEPSEEK_DSML,
        f'<{DSML}invoke name="h">\n<{DSML}parameter name="k" string="true">5</{DSML}parameter>\n',
        "",
        [("h", '{"k": "5"')],
    ),
    (
        DEEPSEEK_DSML,
        f'<{DSML}invoke name="h">\n<{DSML}parameter name="k" string="false">5</{DSML}parameter>\n',
        "",
        [("h", '{"k": 5')],
    ),
    (QWEN_CODER, '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "", [("f", '{"x": 1}')]),
]


@pytest.mark.share(7)
@pytest.mark.parametrize(("tool_format", "answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(
    tool_format: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    check_every_split(tool_format, answer, Merged(text, tuple(calls)))


def test_each_argument_comes_when_it_is_complete() -> None:
    parser = QWEN_CODER.make_parser(SCHEMAS)
    assert parser.push("<tool_call><function=f>") == [ToolCallStart(0, "f")]
    assert parser.push("<parameter=x>12") == []
    assert parser.push("</parameter>") == [ToolCallArguments(0, '{"x": 12')]
    assert parser.push("</function>") == [ToolCallArguments(0, "}")]


@for_each(
    ("text", "schema", "value"),
    [
        ("5", STRING, "5"), ("5", {"type": "integer"}, 5), ("5", None, 5), ("true", {}, True), ("null", STRING, "null"),
        ("five", {"type": "integer"}, "five"), (" [1] ", None, [1]), (" a ", None, " a "), ("NaN", None, "NaN"),
        ("9" * 5000, STRING, "9" * 5000), ("[" * 5000, None, "[" * 5000), ("", None, ""), ("1 2", None, "1 2"),
    ],
)  # fmt: skip
def test_json_stays_unless_the_schema_says_string(text: str, schema: Any, value: Any) -> None:
    assert json.loads(argument_value(text, {"f": {"properties": {"k": schema}}}, "f", "k")) == value


def test_an_integer_of_any_size_stays() -> None:
    assert argument_value("9" * 5000, {}, "f", "k") == "9" * 5000
    assert read(QWEN_CODER, qwen("h", x="9" * 5000)).calls == (("h", f'{{"x": {"9" * 5000}}}'),)


@for_each(
    ("schema", "is_string"),
    [
        (STRING, True), ({"type": ["string", "null"]}, True), ({"type": ["string", "integer"]}, False), ({}, False),
        ({"enum": ["a", "b"]}, True), ({"enum": ["a", 1]}, False), ({"enum": []}, False), ({"type": 5}, False),
        ({"anyOf": [STRING, {"type": "null"}]}, True), ({"oneOf": [STRING, {"type": "integer"}]}, False),
        ({"anyOf": []}, False), (None, False), ("string", False), (True, False),
    ],
)  # fmt: skip
def test_a_schema_says_whether_only_strings_are_allowed(schema: Any, is_string: bool) -> None:
    assert is_string_schema(schema) is is_string


def test_strings_stream_within_one_value() -> None:
    parser = QWEN_CODER.make_parser(SCHEMAS)
    assert parser.push("<tool_call><function=g>\n<parameter=y>\nline") == [
        ToolCallStart(0, "g"), ToolCallArguments(0, '{"y": "line')
    ]  # fmt: skip
    assert parser.push(' "1"\n') == [ToolCallArguments(0, ' \\"1\\"')], "the last line break may be syntax"
    assert parser.push("2</para") == [ToolCallArguments(0, "\\n2")]
    assert parser.push("m>\n</parameter>") == [ToolCallArguments(0, '</param>"')]


@for_each(
    ("answer", "expected"),
    [
        ("<tool_call><function=g><parameter=y>a</function></tool_call>\nSo.", Merged("\nSo.", (("g", '{"y": "a"}'),))),
        ("<tool_call><function=f><parameter=x>1\n</tool_call>So.", Merged("So.", (("f", '{"x": 1}'),))),
        ("<tool_call><function=g><parameter=y>a</function>b</parameter></function>",
         Merged("", (("g", '{"y": "a</function>b"}'),))),
        ("<tool_call><function=g><parameter=y>a</function>So.<tool_call><function=f></function>",
         Merged("So.", (("g", '{"y": "a"}'), ("f", "{}")))),
        ("<tool_call><function=f><parameter=x\n1</parameter></function>", Merged("", (("f", '{"x": 1}'),))),
        ("<tool_call><function=f><parameter=x>[1, 2", Merged("", (("f", '{"x": [1, 2'),))),
        ("<tool_call><function=g><parameter=z>not JSON", Merged("", (("g", '{"z": "not JSON'),))),
        (f"<tool_call><function=f><parameter={'x ' * 200}", Merged(f"<parameter={'x ' * 200}", (("f", "{}"),))),
    ],
)  # fmt: skip
def test_the_ends_of_values_may_be_missing(answer: str, expected: Merged) -> None:
    check_every_split(QWEN_CODER, answer, expected)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "boolean"}, "True", "true"), ({"type": "boolean"}, "False", "false"),
        ({"type": ["integer", "null"]}, "None", "null"), ({"type": "array"}, "['a', None]", '["a", null]'),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, "{'k': True}", '{"k": true}'),
        ({"type": "integer"}, "two ", '"two "'), ({"type": "integer"}, "'2'", "\"'2'\""),
        ({"type": "string"}, "True", '"True"'), ({"type": ["string", "integer"]}, "None", '"None"'),
        ({}, "True", '"True"'), ({"type": 5}, "True", '"True"'), ({"anyOf": []}, "True", '"True"'),
    ],
)  # fmt: skip
def test_python_literals_of_arguments_that_are_no_strings_become_json(schema: Any, text: str, expected: str) -> None:
    """Qwen's templates write True and None into the history, and so the models call."""
    schemas = {"f": {"type": "object", "properties": {"x": schema}}}
    answer = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    check_every_split(QWEN_CODER, answer, Merged("", (("f", f'{{"x": {expected}}}'),)), schemas=schemas)
