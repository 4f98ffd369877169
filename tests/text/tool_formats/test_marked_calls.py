"""DEEPSEEK, KIMI: calls between special tokens, complete, malformed and cut."""

import pytest

from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.marked_calls import DEEPSEEK, KIMI
from chairlift.text.tool_formats.tool_call_parser import TextDelta, ToolCallArguments, ToolCallStart
from support_tool_formats import Merged, check_every_split

BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FIRST, LAST = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
X, Y = '{"x": 1}', '{"y": "``` } <｜tool▁call▁end｜> \\" é", "z": [{"a": {}}]}'


def v3(name: str, arguments: str) -> str:
    return f"{BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{END}"


def v31(name: str, arguments: str) -> str:
    return f"{BEGIN}{name}{SEP}{arguments}{END}"


def kimi(name: str, arguments: str, number: int = 0) -> str:
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


ANSWERS: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (DEEPSEEK, "Hello <｜tool", "Hello <｜tool", []),
    (DEEPSEEK, f"{FIRST}{v3('f', X)}\n{v3('g', Y)}{LAST}", "", [("f", X), ("g", Y)]),
    (DEEPSEEK, f"I look.\n\n{FIRST}{v31('f', X)}{v31('g', Y)}{LAST}", "I look.\n\n", [("f", X), ("g", Y)]),
    (DEEPSEEK, f"{v31('f', X)} Done.", " Done.", [("f", X)]),
    (DEEPSEEK, f"{FIRST}{v31('function', X)}", "", [("function", X)]),
    (DEEPSEEK, f"{FIRST} no {LAST}", f"{FIRST} no {LAST}", []),
    (DEEPSEEK, f"{BEGIN}f{SEP}x\ny", f"{BEGIN}f{SEP}x\ny", []),
    (DEEPSEEK, f"{BEGIN}a b{SEP}{{}}", f"{BEGIN}a b{SEP}{{}}", []),
    (DEEPSEEK, f"{BEGIN}{'n' * 600}", f"{BEGIN}{'n' * 600}", []),
    (DEEPSEEK, f"{FIRST}{BEGIN}function{SEP}f\n```json\n{{\"x\": [1", "", [("f", '{"x": [1')]),
    (KIMI, f"<|tool_calls_section_begin|>{kimi('f', X)}{kimi('g', Y, 1)}<|tool_calls_section_end|>", "",
     [("f", X), ("g", Y)]),
    (KIMI, f"So. {kimi('a.b', '{}', 12)}", "So. ", [("a.b", "{}")]),
    (KIMI, "<|tool_call_begin|>f<|tool_call_end|>", "<|tool_call_begin|>f<|tool_call_end|>", []),
]  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.parametrize(("tool_format", "answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(
    tool_format: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    check_every_split(tool_format, answer, Merged(text, tuple(calls)))


def test_arguments_come_at_once() -> None:
    parser = DEEPSEEK.make_parser({})
    assert parser.push(f"So.{FIRST}{BEGIN}f") == [TextDelta("So.")]
    assert parser.push(f'{SEP}{{"x') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x')]
    assert parser.push('": 1}') == [ToolCallArguments(0, '": 1}')]
    assert parser.push(END) == parser.flush() == []
