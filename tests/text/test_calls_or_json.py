"""CallsOrJsonParser: JSON with the text of a call in a string is no call, however the answer is split."""

import json

import pytest

from chairlift.text.calls_or_json import CallsOrJsonParser, calls_or_json_parser
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.glm import GLM
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL, PHI4_FUNCTOOLS
from chairlift.text.tool_formats.marked_calls import KIMI
from chairlift.text.tool_formats.xml_calls import QWEN_CODER
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, halves, merged, push_all, read

CALLS = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'), (GLM, "<tool_call>f</tool_call>"),
    (QWEN_CODER, "<tool_call><function=f></function></tool_call>"),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}}]'),
    (PHI4_FUNCTOOLS, 'functools[{"name": "f", "arguments": {}}]'),
    (KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>"),
]  # fmt: skip


@for_each(("tool_format", "call"), CALLS)
def test_an_answer_that_begins_with_a_marker_has_calls(tool_format: ToolFormat, call: str) -> None:
    for answer in (call, f"\n {call}"):
        for parts in (*halves(answer), tuple(answer)):
            assert merged(push_all(CallsOrJsonParser(tool_format, SCHEMAS), *parts)).calls == (("f", "{}"),)


@for_each(("tool_format", "call"), CALLS)
def test_json_that_contains_a_call_stays_as_it_is(tool_format: ToolFormat, call: str) -> None:
    for value in ({"x": call}, [call], call, "", False, None, "functools", []):
        for text in (json.dumps(value), f"\n{json.dumps(value, indent=1)}"):
            for parts in (*halves(text), tuple(text)):
                assert merged(push_all(CallsOrJsonParser(tool_format, SCHEMAS), *parts)) == Merged(text)
    for cut in ("", "f", " [", "<"):
        assert merged(push_all(CallsOrJsonParser(tool_format, SCHEMAS), cut)) == Merged(cut)
    if tool_format in (GLM, QWEN_CODER, KIMI):
        assert read(tool_format, json.dumps({"x": call})).calls, "the format's own parser reads a call"


@pytest.mark.full
def test_channels_tell_calls_from_json() -> None:
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'
    before, final = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant", "<|channel|>final<|message|>"
    texts = (f"<|end|><|start|>assistant{call}<|call|>", f"<|return|>{call}", "<|start|>", "a<|return|>", "<|end|>")
    for value in texts:
        for text in (json.dumps({"x": value}), json.dumps(value), f"{value}."):
            for end in ("", "<|return|>"):
                for parts in halves(before + final + text + end):
                    pieces = push_all(calls_or_json_parser(HARMONY, SCHEMAS), *parts)
                    assert merged(pieces) == Merged(text, (), "So.")
    pieces = push_all(calls_or_json_parser(HARMONY, SCHEMAS), *before, *call)
    assert merged(pieces) == Merged("", (("f", '{"x": 1}'),), "So.")
    others = [each for each in TOOL_FORMATS.values() if each.may_answer_json and each is not HARMONY]
    assert others and all(isinstance(calls_or_json_parser(each, SCHEMAS), CallsOrJsonParser) for each in others)
