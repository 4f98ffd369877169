"""GEMMA, GEMMA4, TOOL_CODE: calls as Gemma writes them, complete, malformed and cut."""

from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.gemma import GEMMA, GEMMA4, TOOL_CODE
from chairlift.text.tool_formats.tool_call_parser import ToolCallArguments, ToolCallStart
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, check_every_split, read

START, END = "<start_function_call>", "<end_function_call>"
FX, G = ("f", '{"x": 1}'), ("g", "{}")

ANSWERS: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (GEMMA, "Hello <start", "Hello <start", []),
    (GEMMA, f"{START}call:f{{x:1}}{END}", "", [FX]),
    (GEMMA, f"{START}call:f{{x:1}}{END}\n{START}call:g{{}}{END}", "", [FX, G]),
    (GEMMA, f"So. {START}call:f{{s:<escape>a}}, b:\"é<escape>,x:1}}{END} Done.", "So.  Done.",
     [("f", '{"s": "a}, b:\\"é", "x": 1}')]),
    (GEMMA, f"{START}call:g{{z:[{{k:<escape>v<escape>,n:null}},-2.5,true],y:New York}}", "",
     [("g", '{"z": [{"k": "v", "n": null}, -2.5, true], "y": "New York"}')]),
    (GEMMA, f"{START}f{{x:1}}{END}", f"{START}f{{x:1}}{END}", []),
    (GEMMA, f"{START}call: {{x:1}}{END}", f"{START}call: {{x:1}}{END}", []),
    (GEMMA, f"{START}call:f{{x:1,s:<escape>a", "", [("f", '{"x": 1, "s": "a')]),
    (GEMMA4, '<|tool_call>call:f{s:<|"|>a}<|"|>,x:1}<tool_call|><|tool_call>call:g{}<tool_call|>', "",
     [("f", '{"s": "a}", "x": 1}'), G]),
    (GEMMA4, '<|tool_call>call:f{s:"a b",x:1}<tool_call|>', "", [("f", '{"s": "a b", "x": 1}')]),
    (GEMMA4, '<|tool_call>call:f{s:"a, }\\"",x:1}<tool_call|>', "", [("f", '{"s": "a, }\\"", "x": 1}')]),
    (GEMMA4, '<|tool_call>call:g{y:None,z:[True,{"k,": "]"}]}<tool_call|><|tool_response>', "",
     [("g", '{"y": null, "z": [true, {"k,": "]"}]}')]),
    (GEMMA4, '<|tool_call>call:f{s:"a, b', "", [("f", '{"s": "a, b')]),
    (TOOL_CODE, "```tool_code\nf(x=1)\n```", "", [FX]),
    (TOOL_CODE, "Look:\n```python\nprint(f(x=1))\n```\nDone.", "Look:\n\nDone.", [FX]),
    (TOOL_CODE, "```tool_code\nf(x=1)\ng()\n```", "", [FX, G]),
    (TOOL_CODE, "```tool_code\n[f(x=1), g()]\n```", "", [FX, G]),
    (TOOL_CODE, "```python\nx = f(x=1)\n```", "```python\nx = f(x=1)\n```", []),
    (TOOL_CODE, "```python\nprint('f(x=1)')\n```", "```python\nprint('f(x=1)')\n```", []),
    (TOOL_CODE, "```tool_code\nh(x=1)\n```", "```tool_code\nh(x=1)\n```", []),
    (TOOL_CODE, "```tool_code\nf(s='```')\n```", "", [("f", '{"s": "```"}')]),
    (TOOL_CODE, "```tool_code\nf(x=1)", "", [FX]),
    (TOOL_CODE, "````tool_code", "````tool_code", []),
]  # fmt: skip


@for_each(("tool_format", "answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(
    tool_format: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    check_every_split(tool_format, answer, Merged(text, tuple(calls)))


def test_the_reasoning_of_gemma_4_is_reasoning() -> None:
    answer = "<|channel>thought\nI must look.<channel|><|tool_call>call:f{x:1}<tool_call|>"
    check_every_split(GEMMA4, answer, Merged("", (FX,), "I must look."))


def test_each_argument_comes_when_it_is_complete() -> None:
    parser = GEMMA.make_parser(SCHEMAS)
    assert parser.push(f"{START}call:f{{") == [ToolCallStart(0, "f")]
    assert parser.push("x:12") == []
    assert parser.push(",") == [ToolCallArguments(0, '{"x": 12')]
    assert parser.push(f"}}{END}") == [ToolCallArguments(0, "}")]


def test_without_tools_a_fence_may_call_any_function() -> None:
    assert read(TOOL_CODE, "```tool_code\nany(x=1)\n```", schemas={}).calls == (("any", '{"x": 1}'),)


def test_two_thoughts_of_gemma_4_have_a_blank_line_between_them() -> None:
    answer = (
        "<|channel>thought\n \nOne.\n<channel|>Text.<|channel>thought\n<channel|><|channel>thought\nTwo. <channel|>"
    )
    check_every_split(GEMMA4, answer, Merged("Text.", (), "One.\n\nTwo."))
