"""HARMONY: channels become reasoning, text and calls."""

import pytest

from chairlift.text.tool_formats.base import ReasoningText, TextDelta, ToolCallArguments, ToolCallStart
from chairlift.text.tool_formats.harmony import HARMONY, MAX_HEADER_CHARS
from support_tool_formats import SCHEMAS, Merged, check_every_split

THOUGHT = "<|channel|>analysis<|message|>I must look.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>It is 5.<|return|>"
FX, G = ("f", '{"x": 1}'), ("g", "{}")


def call(name: str, arguments: str) -> str:
    return (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


ANSWERS: list[tuple[str, Merged]] = [
    ("Hello.", Merged("Hello.")),
    (THOUGHT + FINAL, Merged("It is 5.", (), "I must look.")),
    (FINAL, Merged("It is 5.")),
    (THOUGHT + call("f", '{"x": 1}'), Merged("", (FX,), "I must look.")),
    (THOUGHT + call("f", '{"x": 1}') + call("g", "{}"), Merged("", (FX, G), "I must look.")),
    (call("f", '{"s": "<|call|> é", "x": 1}'), Merged("", (("f", '{"s": "<|call|> é", "x": 1}'),))),
    ("<|channel|>commentary<|message|>I look.<|end|>" + call("f", '{"x": 1}'), Merged("I look.", (FX,))),
    (' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', Merged("", (FX,))),
    ('<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"x": 1}', Merged("", (FX,))),
    ('<|channel|>commentary to=f<|message|>{"x": 1}<|call|>', Merged("", (FX,))),
    ('<|channel|>analysis to=functions.f code<|message|>{"x": 1}<|call|>', Merged("", (FX,))),
    ("<|channel|>commentary to=functions.g<|message|><|call|>", Merged("", (G,))),
    ("<|channel|>commentary to=functions.g<|message|>a b<|call|>", Merged("", (("g", '"a b"'),))),
    ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", Merged("", (), "print(1)")),
    ("<|channel|>analysis<|message|>So<|channel|>final<|message|>Yes", Merged("Yes", (), "So")),
    ("<|channel|>analysis<|message|>cut o<|e", Merged("", (), "cut o<|e")),
    ("<|channel|>final<|message|>cut o<|e", Merged("cut o<|e")),
    ("<|channel|>fin", Merged("")),
    ("<|channel|>" + "x" * MAX_HEADER_CHARS, Merged("<|channel|>" + "x" * MAX_HEADER_CHARS)),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(answer: str, expected: Merged) -> None:
    check_every_split(HARMONY, answer, expected)


def test_everything_comes_at_once() -> None:
    parser = HARMONY.make_parser(SCHEMAS)
    assert parser.push("<|channel|>analysis<|message|>I mu") == [ReasoningText("I mu")]
    assert parser.push("st<|end|><|start|>assistant<|channel|>commentary to=functions.f ") == [ReasoningText("st")]
    assert parser.push('<|constrain|>json<|message|>{"x') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x')]
    assert parser.push('": 1}<|call|>') == [ToolCallArguments(0, '": 1}')]
    assert parser.push("<|start|>assistant<|channel|>final<|message|>a b") == [TextDelta("a b")]
