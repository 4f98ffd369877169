"""GLM: tagged arguments become JSON by the tool's schema."""

import pytest

from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.glm import GLM
from chairlift.text.tool_formats.tool_call_parser import ToolCallArguments, ToolCallStart
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, check_every_split


def glm(name: str, **arguments: str) -> str:
    tags = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{tags}</tool_call>"


FXS, GYZ = ("f", '{"x": 1, "s": "1"}'), ("g", '{"y": "a\\"}\\n</tool_call>é", "z": [1, {"k": null}]}')
Y, Z = 'a"}\n</tool_call>é', '[1, {"k": null}]'

ANSWERS: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (GLM, "Hello <tool_", "Hello <tool_", []),
    (GLM, glm("f", x="1", s="1"), "", [FXS]),
    (GLM, f"I look.\n{glm('f', x='1', s='1')}\n{glm('g', y=Y, z=Z)}\nDone.", "I look.\n\nDone.", [FXS, GYZ]),
    (GLM, glm("f"), "", [("f", "{}")]),
    (GLM, glm("f", q="one two"), "", [("f", '{"q": "one two"}')]),
    (GLM, "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>", "", [("f", '{"x": 1')]),
    (GLM, "<tool_call>f\n<arg_key>x</arg_key>\n<arg_val", "", [("f", "")]),
    (GLM, "<tool_call>f\n<arg_key>x</arg_key><arg_value>1</arg_value> so", " so", [("f", '{"x": 1}')]),
    (GLM, "<tool_call>no <b>name</b></tool_call>", "<tool_call>no <b>name</b></tool_call>", []),
    (GLM, '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "", [("f", '{"x": 1}')]),
    (GLM, '<tool_call>f\n{"x": 1}</tool_call>', "", [("f", '{"x": 1}')]),
    (GLM, 'f\n{"x": 1}', "", [("f", '{"x": 1}')]),
    (GLM, 'f\n{"x": 1} Done', " Done", [("f", '{"x": 1}')]),
    (GLM, "fine", "fine", []),
    (GLM, 'So: f\n{"x": 1}', 'So: f\n{"x": 1}', []),
]


@for_each(("tool_format", "answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(
    tool_format: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    check_every_split(tool_format, answer, Merged(text, tuple(calls)))


def test_each_argument_comes_when_it_is_complete() -> None:
    parser = GLM.make_parser(SCHEMAS)
    assert parser.push("<tool_call>f\n<arg_key>") == [ToolCallStart(0, "f")]
    assert parser.push("x</arg_key><arg_value>12") == []
    assert parser.push("</arg_value>") == [ToolCallArguments(0, '{"x": 12')]
    assert parser.push("</tool_call>") == [ToolCallArguments(0, "}")]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<tool_call>g\n<arg_key>y</arg_key>\n<arg_value>a</tool_call>\nSo.", Merged("\nSo.", (("g", '{"y": "a"}'),))),
        ("<tool_call>f\n<arg_key>x\n<arg_value>1</arg_value></tool_call>So.", Merged("So.", (("f", '{"x": 1}'),))),
        ("<tool_call>f\n<arg_key>x</arg_key>1</arg_value></tool_call>So.", Merged("So.", (("f", '{"x": 1}'),))),
        ("<tool_call>f\n<arg_key>so it is", Merged("so it is", (("f", ""),))),
        ("<tool_call>g\n<arg_key>y</arg_key>\n<arg_value>a b", Merged("", (("g", '{"y": "a b'),))),
    ],
)
def test_the_tags_of_an_argument_may_be_missing(answer: str, expected: Merged) -> None:
    check_every_split(GLM, answer, expected)
