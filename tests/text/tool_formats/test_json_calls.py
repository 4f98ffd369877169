"""JsonCalls: every format with calls in JSON, complete, malformed and cut."""

import pytest

from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.json_calls import COMMAND_R, FORCED, GRANITE, HERMES, LLAMA3, MISTRAL, PHI4
from chairlift.text.tool_formats.tool_call_parser import TextDelta, ToolCallArguments, ToolCallStart
from support_tool_formats import Merged, check_every_split, merged, push_all, read

F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "arguments": {"y": "a}b\\"{,", "z": [1, {"k": null}]}}'
FX, GY = ("f", '{"x": 1}'), ("g", '{"y": "a}b\\"{,", "z": [1, {"k": null}]}')
T = '{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}'

ANSWERS: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Hello.", "Hello.", []),
    (HERMES, "", "", []),
    (HERMES, " \n", " \n", []),
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", "", [FX]),
    (HERMES, f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>\n", "", [FX, GY]),
    (HERMES, f"<tool_call>{F}\n{G}</tool_call>", "", [FX, GY]),
    (HERMES, f"<tool_call>[{F}, {G}]</tool_call>", "", [FX, GY]),
    (HERMES, f"I look.\n<tool_call>\n{F}\n</tool_call> Done.", "I look.\n Done.", [FX]),
    (HERMES, f"<tool_call>{F}", "", [FX]),
    (HERMES, f"<tool_call>{F}</tool", "", [FX]),
    (HERMES, f"<tool_call>{F} and more", " and more", [FX]),
    (HERMES, f"<tool_call>{F}, and more", ", and more", [FX]),
    (HERMES, f"<tool_call>{F}</tool_calls> <b>", "</tool_calls> <b>", [FX]),
    (HERMES, f"<tool_call>{F}<tool_call>{G}", "", [FX, GY]),
    (HERMES, "a < b <tool <tool_call <tool_cal", "a < b <tool <tool_call <tool_cal", []),
    (HERMES, f"<<tool_call>{F}</tool_call>", "<", [FX]),
    (HERMES, f"<tool_call> <tool_call>{F}</tool_call>", "<tool_call> ", [FX]),
    (HERMES, "<tool_call>what?</tool_call>", "<tool_call>what?</tool_call>", []),
    (HERMES, '<tool_call>{"nome": "f"}</tool_call>', '<tool_call>{"nome": "f"}</tool_call>', []),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [FX]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "", [("f", '"x"')]),
    (HERMES, '<tool_call>{"id": 7, "ok": true, "name": "f", "arguments": {"x": 1}, "n": 1.5}',
     '"ok": true, "n": 1.5', [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}, "arguments": {"x": 2}}', '"arguments": {"x": 2}', [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}\n</tool_call>\nIt is "5", I think.',
     '\nIt is "5", I think.', [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1\n</tool_call> a, "b": {"c": 5}', ' a, "b": {"c": 5}',
     [("f", '{"x": 1\n')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1<tool_call>{"name": "f", "arguments": {"x": 1}}', "",
     [("f", '{"x": 1'), FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1} "so" it is', ' "so" it is', [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}, "so it is', '"so it is', [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1, 2]}</tool_call>', "", [("f", "[1, 2]")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": 5}</tool_call>', "", [("f", "5")]),
    (HERMES, '<tool_call>{"name": "g", "arguments": null}</tool_call>', "", [("g", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1', "", [("f", '{"x": 1')]),
    (LLAMA3, '{"name": "f", "parameters": {"x": 1}, "comment": "hi", "n": 5}', '"comment": "hi", "n": 5', [FX]),
    (LLAMA3, '{"name": "f", "parameters": {"x": 1}}\n```python\nx\n```', "\n```python\nx\n```", [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": [', "", [("f", '{"x": [')]),
    (HERMES, '<tool_call>{"name"f", 1}', '<tool_call>{"name"f", 1}', []),
    (HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
    (HERMES, '<tool_call>{"name": "\\ud83d\\ude00\\ud800"}', "", [("😀\ufffd", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"s": "é </tool_call> 🚡"}}</tool_call>', "",
     [("f", '{"s": "é </tool_call> 🚡"}')]),
    (MISTRAL, f"[TOOL_CALLS][{F}, {G}]", "", [FX, GY]),
    (MISTRAL, f"[TOOL_CALLS] [{F}]\n", "", [FX]),
    (MISTRAL, f"So: [TOOL_CALLS][{F}] ok", "So:  ok", [FX]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]' + GY[1], "", [FX, GY]),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"x": 1}', "", [FX]),
    (MISTRAL, '[TOOL_CALLS] f {"x": 1}', "", [FX]),
    (MISTRAL, "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
    (MISTRAL, "[TOOL_CALLS]a b{}", "[TOOL_CALLS]a b{}", []),
    (MISTRAL, "[1, 2] [TOOL", "[1, 2] [TOOL", []),
    (MISTRAL, "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    (MISTRAL, f'[TOOL_CALLS][{F}, {{"nome": 1}}]', '{"nome": 1}]', [FX]),
    (LLAMA3, '{"name": "f", "parameters": {"x": 1}}', "", [FX]),
    (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; ' + G, "", [FX, GY]),
    (LLAMA3, f"<|python_tag|>{F}<|eom_id|>", "", [FX]),
    (LLAMA3, f"[{F}, {G}]", "", [FX, GY]),
    (LLAMA3, '{"type": "function", "name": "f", "parameters": {"x": 1}}', "", [FX]),
    (LLAMA3, '{"function": "f", "parameters": {"x": 1}}', "", [FX]),
    (LLAMA3, ' {"name": "f", "parameters": {"x": 1}}', " ", [FX]),
    (LLAMA3, f"{F}; and", "; and", [FX]),
    (LLAMA3, '{"colour": "red"} is JSON', '{"colour": "red"} is JSON', []),
    (LLAMA3, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    (LLAMA3, "[1, 2]", "[1, 2]", []),
    (LLAMA3, 'It is {"name": "f", "parameters": {}}', 'It is {"name": "f", "parameters": {}}', []),
    (LLAMA3, '<|python_tag|>print("hi")', '<|python_tag|>print("hi")', []),
    (LLAMA3, '<|python_tag|>{"name": "other", "parameters": {}}', "", [("other", "{}")]),
    (PHI4, f"<|tool_call|>[{F}, {G}]<|/tool_call|>", "", [FX, GY]),
    (PHI4, f" functools[{F}]", " ", [FX]),
    (PHI4, "functools are tools", "functools are tools", []),
    (GRANITE, f"<|tool_call|>[{F}]", "", [FX]),
    (GRANITE, f"<tool_call>[{F}, {G}]", "", [FX, GY]),
    (COMMAND_R, f"<|START_ACTION|>[\n  {T}\n]<|END_ACTION|>", "", [FX]),
    (COMMAND_R, f"Action: ```json\n[{T}, {T}]\n```", "", [FX, FX]),
    (COMMAND_R, "Action: ```json\n[]```", "Action: ```json\n[]```", []),
    (COMMAND_R, "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes.", []),
]  # fmt: skip


@pytest.mark.share(38)
@pytest.mark.parametrize(("tool_format", "answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(
    tool_format: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    check_every_split(tool_format, answer, Merged(text, tuple(calls)))


def test_reasoning_before_a_call_is_reasoning() -> None:
    answer = f"<|START_THINKING|>I must look.<|END_THINKING|>\n<|START_ACTION|>[{T}]<|END_ACTION|>"
    check_every_split(COMMAND_R, answer, Merged("", (FX,), "I must look."))
    check_every_split(MISTRAL, "[THINK]So [it[/THINK]\nYes.", Merged("Yes.", (), "So [it"))
    check_every_split(MISTRAL, "[THINK]So [/TH", Merged("", (), "So [/TH"))


def test_without_tools_a_bare_object_may_call_any_function() -> None:
    assert read(LLAMA3, '{"name": "Ada", "parameters": {}}', schemas={}) == Merged("", (("Ada", "{}"),))
    assert read(LLAMA3, '{"name": "Ada", "age": 36}', schemas={}).calls == (("Ada", "{}"),)


def test_a_forced_answer_is_bare_objects() -> None:
    parser = FORCED.make_parser({})
    assert merged(push_all(parser, f"{F}; {G}")) == Merged("", (FX, GY))


def test_text_and_arguments_come_at_once() -> None:
    parser = HERMES.make_parser({})
    assert parser.push("Hello ") == [TextDelta("Hello ")]
    assert parser.push("you <too") == [TextDelta("you ")]
    assert parser.push('l_call>{"name": "f", "argum') == [ToolCallStart(0, "f")]
    assert parser.push('ents": {"x"') == [ToolCallArguments(0, '{"x"')]
    assert parser.push(": 1}") == [ToolCallArguments(0, ": 1}")]
    assert parser.push("}</tool_call>\n") == []
    assert parser.flush() == []


def test_json_that_is_no_call_is_text_at_its_first_key() -> None:
    parser = LLAMA3.make_parser({})
    assert parser.push('{"colour":') == [TextDelta('{"colour":')]
    assert parser.push(' "red"') == [TextDelta(' "red"')]
