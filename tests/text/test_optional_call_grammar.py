"""optional_call_grammar: any text, and enforced calls behind the first marker, as the format's parser reads them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from chairlift.text.reasoning_formats import ReasoningState
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import (
    COMMAND_A,
    COMMAND_R,
    GRANITE,
    HERMES,
    JSON_TAGS,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    MISTRAL_IDS,
    PHI4,
    PHI4_FUNCTOOLS,
)
from chairlift.text.tool_formats.marked_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from support_call_grammars import compiled, random_answer, takes_answer
from support_grammars import allowed_tokens
from support_shares import for_each
from support_tool_formats import merged, push_all

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS: Mapping[str, Any] = {"f": INTEGER, "g": {"type": "object"}}
F, G = ("f", '{"x": 1}'), ("g", '{"any": [1, "}"]}')
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def json_call(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


LISTS = {
    "mistral": ("[TOOL_CALLS]", ""), "phi4": ("<|tool_call|>", "<|/tool_call|>"), "phi4-functools": ("functools", ""),
    "granite": ("<|tool_call|>", ""), "json-tags": ("<tool_calls>", "</tool_calls>"),
    "command-r": ("Action: ```json\n", "\n```"), "command-a": ("<|START_ACTION|>", "<|END_ACTION|>"),
}  # fmt: skip


def calls_of(tool_format: ToolFormat, *calls: tuple[str, str]) -> str:
    """Return calls as a model of this format writes them."""
    objects = [json_call(*each) for each in calls]
    if tool_format is HERMES:
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    if tool_format is MISTRAL_ARGS:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    if tool_format is MISTRAL_IDS:
        return "".join(f"[TOOL_CALLS]{name}[CALL_ID]aB3dE6gH9[ARGS]{arguments}" for name, arguments in calls)
    if tool_format is LLAMA3:
        return "; ".join(each.replace("arguments", "parameters", 1) for each in objects)
    if tool_format.name in LISTS:
        begin, end = LISTS[tool_format.name]
        if tool_format in (COMMAND_R, COMMAND_A):
            objects = [each.replace('"name"', '"tool_name"').replace("arguments", "parameters") for each in objects]
        return f"{begin}[{', '.join(objects)}]{end}"
    if tool_format is KIMI:
        parts = [f"functions.{name}:{number}<|tool_call_argument_begin|>{arguments}"
                 for number, (name, arguments) in enumerate(calls)]  # fmt: skip
        inner = "".join(f"<|tool_call_begin|>{part}<|tool_call_end|>" for part in parts)
        return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
    sep = "<｜tool▁sep｜>"
    if tool_format is DEEPSEEK:
        parts = [f"function{sep}{name}\n```json\n{arguments}\n```" for name, arguments in calls]
    else:
        parts = [f"{name}{sep}{arguments}" for name, arguments in calls]
    between = "\n" if tool_format is DEEPSEEK else ""
    inner = between.join(f"<｜tool▁call▁begin｜>{part}<｜tool▁call▁end｜>" for part in parts)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def takes(tool_format: ToolFormat, text: str, **options: Any) -> bool:
    return takes_answer(tool_format, TOOLS, text, **options)


MARKED = (HERMES, MISTRAL, MISTRAL_ARGS, MISTRAL_IDS, PHI4, DEEPSEEK, DEEPSEEK_V31, GRANITE, PHI4_FUNCTOOLS,
          JSON_TAGS, KIMI, COMMAND_R, COMMAND_A)  # fmt: skip
FORMATS = (*MARKED, LLAMA3)
CASES = [(each, tokens) for each in FORMATS for tokens in (True, False)]
EVERY_CASE = pytest.mark.parametrize(("tool_format", "tokens"), CASES)
TEXTS = (
    "",
    "Hello.",
    "\n\nTwo <b> [lines]\n",
    'So: {"name": "f", "arguments": {"x": "?"}}',
    '{"name": "f", "arguments": {"x": "?"}}',
    "<tool_cal",
    "import functools, Action:\n``",
    "é 😀 [TOOL_CALL",
)


@pytest.mark.share(3)
@EVERY_CASE
def test_an_answer_without_a_call_is_any_text(tool_format: ToolFormat, tokens: bool) -> None:
    for text in TEXTS:
        is_call = tool_format is LLAMA3 and text.startswith("{")
        assert takes(tool_format, text, tokens=tokens) != is_call, text


@pytest.mark.share(2)
@EVERY_CASE
def test_calls_are_enforced_behind_any_text_and_read(tool_format: ToolFormat, tokens: bool) -> None:
    for text in TEXTS[:3] if tool_format is not LLAMA3 else ("", " \n", "<|python_tag|>", "So: <|python_tag|>"):
        for calls in ((F,), (G,), (F, G, F)):
            answer = text + calls_of(tool_format, *calls)
            assert takes(tool_format, answer, tokens=tokens), answer
            assert takes(tool_format, answer, tokens=tokens, several=False) == (len(calls) == 1)
            result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
            assert result.calls == calls and result.text.strip() == text.removesuffix("<|python_tag|>").strip()
    for bad in (("f", '{"x": "1"}'), ("f", "{}"), ("h", "{}"), ("g", "[]"), ("", "{}")):
        before = " " if tool_format is LLAMA3 else "Hi "
        assert not takes(tool_format, before + calls_of(tool_format, bad), tokens=tokens), bad
    whole = calls_of(tool_format, F)
    for bad_text in (whole + "more", whole[:-1], whole[: len(whole) // 2], whole.replace('"x"', '"y"')):
        assert not takes(tool_format, bad_text, tokens=tokens), bad_text


@pytest.mark.share(2)
@pytest.mark.parametrize("tool_format", [*FORMATS, HARMONY], ids=lambda each: each.name)
def test_the_parser_reads_whatever_calls_the_grammar_allows(tool_format: ToolFormat) -> None:
    flags = {
        "type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "boolean"}}, "o": {"enum": ["<", 1]}},
    }
    tools = {"f": INTEGER, "k": {**flags, "additionalProperties": False}}
    begins = [calls_of(tool_format, ("NAME", "{}")).partition("NAME")[0]]
    if tool_format is HARMONY:
        begins = [call.partition("{}")[0] for call in CHANNEL_CALLS]
    for seed in range(12):
        answer = random_answer(compiled(tool_format, tools, tokens=False), begins[seed % len(begins)], seed)
        result = merged(push_all(tool_format.make_parser(tools), *answer))
        assert result.calls and not result.text.strip(), answer
        for name, text in result.calls:
            arguments = json.loads(text)
            assert name in tools and arguments.keys() <= tools[name]["properties"].keys(), answer
            assert isinstance(arguments.get("x"), int) == (name == "f")
            assert all(isinstance(flag, bool) for flag in arguments.get("l", ())) and arguments.get("o", 1) in ("<", 1)


@for_each("tool_format", [each for each in MARKED if each not in (PHI4_FUNCTOOLS, COMMAND_R)])
def test_a_marker_is_not_spelled_in_other_tokens(tool_format: ToolFormat) -> None:
    followed = compiled(tool_format, TOOLS)
    answer = calls_of(tool_format, F).encode()
    num_allowed = 0
    while answer[num_allowed] in allowed_tokens(followed):
        followed.advance(answer[num_allowed])
        num_allowed += 1
    assert 0 < num_allowed < len(answer.partition(b">")[0]) + 1


@pytest.mark.parametrize("tokens", [True, False])
def test_text_before_a_call_does_not_begin_reasoning_for_the_parser(tokens: bool) -> None:
    """The parser would read the call as a part of the reasoning."""
    for tool_format, start in (
        (MISTRAL, "[THINK]"),
        (COMMAND_R, "<|START_THINKING|>"),
        (COMMAND_A, "<|START_THINKING|>"),
    ):
        for before, is_allowed in ((start, False), (f"So {start} x", False), (start[:-1], True)):
            answer = before + calls_of(tool_format, F)
            assert takes(tool_format, answer, tokens=tokens) == is_allowed, answer
            assert bool(merged(push_all(tool_format.make_parser(TOOLS), *answer)).calls) == is_allowed


@pytest.mark.share(2)
@EVERY_CASE
def test_the_model_may_reason_first(tool_format: ToolFormat, tokens: bool) -> None:
    call = calls_of(tool_format, F)
    bad = calls_of(tool_format, ("f", '{"x": "1"}'))
    options: dict[str, Any] = {"tokens": tokens, "state": ReasoningState.OPEN}
    for thought in ("so</think>", "so\n</think>\n\n"):
        for answer in ("Hello.", "", call, *([] if tool_format is LLAMA3 else [f"I look.\n{call}"])):
            assert takes(tool_format, thought + answer, **options)
            assert takes(tool_format, f"<think>{thought}{answer}", **{**options, "state": ReasoningState.NOT_STARTED})
        assert not takes(tool_format, thought + bad, **options)
        assert not takes(tool_format, f"<think>{thought}{bad}", **{**options, "state": ReasoningState.NOT_STARTED})
    assert takes(tool_format, call, **{**options, "state": ReasoningState.NOT_STARTED})
    assert not takes(tool_format, "so", **options)


@pytest.mark.share(2)
@pytest.mark.parametrize(("tool_format", "tokens"), [each for each in CASES if each[0] is not LLAMA3])
def test_an_answer_is_a_call_or_has_the_schema(tool_format: ToolFormat, tokens: bool) -> None:
    options: dict[str, Any] = {"tokens": tokens, "answer": CITY}
    for answer in (calls_of(tool_format, F), calls_of(tool_format, G, F), json.dumps({"city": "<tool_cal"})):
        assert takes(tool_format, answer, **options), answer
        state = ReasoningState.OPEN
        assert takes(tool_format, f"so</think>\n{answer}", state=state, **options)
    for wrong in ("", "Hello", "{}", '{"city": 1}', calls_of(tool_format, ("f", "{}")), "I look. " + json.dumps(F)):
        assert not takes(tool_format, wrong, **options), wrong


# Other ways to write calls that models of a format have, and calls that only the parser would read.
OTHER_CALLS = [
    (GRANITE, '<tool_call> [{"name":"f","arguments":{"x": 1}}]', True),
    (GRANITE, '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', False),
    (PHI4, 'functools[{"name": "f", "arguments": {"x": 1}}]', True),
    (PHI4, 'functools[{"name": "f", "arguments": {"x": "1"}}]', False),
    (PHI4_FUNCTOOLS, 'functools [{"name": "f", "arguments": {"x": 1}}]', False),
    (PHI4_FUNCTOOLS, 'functools\n{"name": "f", "arguments": {"x": 1}}', False),
    (PHI4_FUNCTOOLS, '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>', True),
    (JSON_TAGS, '<tool_calls>[\n    {"name": "f", "arguments": {"x": 1}}\n]</tool_calls>', True),
    (JSON_TAGS, '<TOOLCALL>[{"name": "f", "arguments": {"x": 1}}]</TOOLCALL>', True),
    (JSON_TAGS, '<TOOLCALL>[{"name": "f", "arguments": {"y": 1}}]</TOOLCALL>', False),
    (JSON_TAGS, '<function_call> {"name": "f", "arguments": {"x": 1}}', True),
    (JSON_TAGS, '<function_call> {"name": "h", "arguments": {"x": 1}}', False),
    (JSON_TAGS, '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"x": 1}}<|action_end|>', True),
    (JSON_TAGS, '<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>', False),
    (COMMAND_R, 'Action:```json\n[{"tool_name": "f", "parameters": {"x": 1}}]```', False),
    (COMMAND_R, '<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": 1}}]<|END_ACTION|>', False),
    (COMMAND_R, 'Action: ```json\n[\n  {\n    "tool_name": "f",\n    "parameters": {\n "x": 1 }\n  }\n]```', True),
    (COMMAND_A, '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}\n]<|END_ACTION|>',
     True),
    (COMMAND_A, '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>', False),
    (COMMAND_A, 'Action: ```json\n[{"tool_name": "f", "parameters": {"x": 1}}]\n```', False),
    (KIMI, '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>', False),
    (LLAMA3, '{"type": "function", "name": "f", "parameters": {"x": 1}}', True),
    (LLAMA3, '{ "name": "f", "parameters": {"x": "1"}}', False),
    (LLAMA3, '[{"name": "f", "parameters": {"x": 1}}]', False),
    (LLAMA3, '```json\n{"name": "f", "parameters": {"x": 1}}\n```', False),
    (LLAMA3, '```\n[ {"name": "f", "parameters": {"x": 1}}]\n```', False),
]  # fmt: skip


@pytest.mark.share(10)
@pytest.mark.parametrize(("tool_format", "answer", "is_allowed"), OTHER_CALLS)
@pytest.mark.parametrize("tokens", [True, False])
def test_no_call_that_the_parser_reads_is_free_text(
    tool_format: ToolFormat, answer: str, is_allowed: bool, tokens: bool
) -> None:
    assert takes(tool_format, answer, tokens=tokens) == is_allowed
    result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
    assert len(result.calls) == 1 and (not is_allowed or result.calls[0][0] == "f")
    assert not is_allowed or json.loads(result.calls[0][1]) == {"x": 1}


@pytest.mark.share(3)
@pytest.mark.parametrize("text", ["[1, 2]", "```python\n{}\n```", "```jsonnet {}```", "It is {}", "; {", "[ ["])
def test_text_of_llama_begins_with_no_call(text: str) -> None:
    for tokens in (True, False):
        assert takes(LLAMA3, text, tokens=tokens) and takes(LLAMA3, f" \n{text}", tokens=tokens)
        assert not takes(LLAMA3, '{"a": 1}', tokens=tokens), "an object is a call"
        assert not takes(LLAMA3, f"{text}<|python_tag|>print(1)", tokens=tokens)


def test_an_answer_may_stand_in_the_markers_of_a_response() -> None:
    call = calls_of(COMMAND_A, F)
    for tokens in (True, False):
        for answer in ("<|START_RESPONSE|>Yes.<|END_RESPONSE|>", f"<|START_RESPONSE|>Yes.<|END_RESPONSE|>{call}"):
            assert takes(COMMAND_A, answer, tokens=tokens)
        result = merged(push_all(COMMAND_A.make_parser(TOOLS), *answer))
        assert (result.text, result.calls) == ("Yes.", (F,))


NOTE = "<|channel|>{}<|message|>{}"
NEXT = "<|end|><|start|>assistant"
CHANNEL_CALLS = (
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}",
    "<|channel|>commentary to=functions.{} json<|message|>{}",
    " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>{}",
    " to=functions.{}<|channel|>commentary json<|message|>{}",
)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [True, False])
def test_channels_without_a_function_are_free(tokens: bool) -> None:
    thought, text = NOTE.format("analysis", "So [it]\n{"), NOTE.format("final", "Yes, to=functions.f.")
    preamble = NOTE.format("commentary", "I look.")
    for answer in (text, preamble, thought + NEXT + text, thought + NEXT + preamble + NEXT + thought + NEXT + text):
        assert takes(HARMONY, answer, tokens=tokens), answer
    for wrong in ("", "Hello.", thought + text, NOTE.format("other", "x"),
                  NOTE.format("commentary to=functions.h", "x"),
                  NOTE.format("analysis to=functions.f", "x"), NOTE.format("final", "<|start|>")):  # fmt: skip
        assert not takes(HARMONY, wrong, tokens=tokens), wrong
    for call in CHANNEL_CALLS:
        for before in ("", thought + NEXT, thought + NEXT + preamble + NEXT):
            answer = before + call.format(*F)
            assert takes(HARMONY, answer, tokens=tokens), answer
            result = merged(push_all(HARMONY.make_parser(TOOLS), *answer))
            assert result.calls == (F,) and (result.text == "I look.") == (preamble in before)
            for bad in (("f", "{}"), ("f", '{"x": "1"}'), ("h", "{}"), ("g", "[]"), ("g", "so")):
                assert not takes(HARMONY, before + call.format(*bad), tokens=tokens), bad
        assert not takes(HARMONY, call.format(*F) + NEXT + call.format(*F), tokens=tokens)


@pytest.mark.parametrize("tokens", [True, False])
def test_the_final_channel_has_the_schema_where_the_client_has_one(tokens: bool) -> None:
    thought = NOTE.format("analysis", "So.") + NEXT
    final = NOTE.format("final", '{"city": "Oslo"}')
    for before in ("", thought):
        for answer in (final, CHANNEL_CALLS[0].format(*G)):
            assert takes(HARMONY, before + answer, tokens=tokens, answer=CITY)
        for wrong in (
            NOTE.format("final", "Oslo"),
            NOTE.format("commentary", "Oslo"),
            CHANNEL_CALLS[0].format("f", "{}"),
        ):
            assert not takes(HARMONY, before + wrong, tokens=tokens, answer=CITY)


def test_the_grammar_of_every_format_compiles() -> None:
    for tool_format in TOOL_FORMATS.values():
        if tool_format.auto_notations:
            compiled(tool_format, TOOLS), compiled(tool_format, TOOLS, tokens=False)
