"""HARMONY: channels become reasoning, text and calls."""

import pytest

from chairlift.text.tool_formats.harmony import HARMONY, HARMONY_WITH_CHANNELS, MAX_HEADER_CHARS
from chairlift.text.tool_formats.tool_call_parser import ReasoningText, TextDelta, ToolCallArguments, ToolCallStart
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, check_every_split, merged, push_all

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
    ("<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>js", Merged("")),
    ("to=5 is the answer", Merged("to=5 is the answer")),
    ("to=5 is the answer" + "." * 400, Merged("to=5 is the answer" + "." * 400)),
    (" to=func", Merged(" to=func")),
    ("<|channel|>final It is 5.", Merged("<|channel|>final It is 5.")),
    ("<|channel|>final It is 5.<|end|>" + FINAL, Merged("<|channel|>final It is 5.It is 5.")),
    ('<|channel|>commentary to=functions.f<|message|>{"x": 1<|call|>It is 5.', Merged("It is 5.", (("f", '{"x": 1'),))),
    ("<|channel|>commentary to=functions.g<|message|>a b", Merged("", (("g", '"a b'),))),
    ("<|channel|>" + "x" * MAX_HEADER_CHARS, Merged("<|channel|>" + "x" * MAX_HEADER_CHARS)),
]


@pytest.mark.share(10)
@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(answer: str, expected: Merged) -> None:
    check_every_split(HARMONY, answer, expected)


KEPT: list[tuple[str, Merged]] = [
    *((text, Merged(text)) for text in (
        "Hello.", THOUGHT + FINAL, FINAL, "<|channel|>fin", "<|channel|>final It is 5.<|end|>" + FINAL, "cut o<|e",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>", "<|channel|>analysis<|message|>",
        "<|channel|>" + "x" * MAX_HEADER_CHARS, "<|channel|>analysis<|message|>So<|channel|>final<|message|>Yes",
    )),
    (THOUGHT + call("f", '{"x": 1}') + call("g", "{}"), Merged(THOUGHT, (FX, G))),
    (' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', Merged("", (FX,))),
]  # fmt: skip


@for_each(("answer", "expected"), KEPT)
def test_without_reasoning_all_but_calls_is_text_with_its_channels(answer: str, expected: Merged) -> None:
    check_every_split(HARMONY_WITH_CHANNELS, answer, expected)


def test_everything_comes_at_once() -> None:
    parser = HARMONY.make_parser(SCHEMAS)
    assert parser.push("<|channel|>analysis<|message|>I mu") == [ReasoningText("I mu")]
    assert parser.push("st<|end|><|start|>assistant<|channel|>commentary to=functions.f ") == [ReasoningText("st")]
    assert parser.push('<|constrain|>json<|message|>{"x') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x')]
    assert parser.push('": 1}<|call|>') == [ToolCallArguments(0, '": 1}')]
    assert parser.push("<|start|>assistant<|channel|>final<|message|>a b") == [TextDelta("a b")]


def test_without_tools_a_call_is_text() -> None:
    assert HARMONY.make_text_parser is not None
    pieces = push_all(HARMONY.make_text_parser(), THOUGHT + call("f", '{"x": 1}') + FINAL)
    assert merged(pieces) == Merged('{"x": 1}It is 5.', (), "I must look.")
