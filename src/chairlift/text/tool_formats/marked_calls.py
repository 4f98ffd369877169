"""DEEPSEEK, KIMI: calls with a special token before the name, before the arguments and at the end.

deepseek    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f, a line break, the arguments,
            fenced as ```json, <｜tool▁call▁end｜>, further calls, <｜tool▁calls▁end｜>
            since V3.1: <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
kimi        <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}
            <|tool_call_end|>, further calls, <|tool_calls_section_end|>
"""

import re
from dataclasses import dataclass, replace
from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_closing,
    read_past_space,
    read_token,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.base import MAX_NAME_CHARS, NUMBER, CallNotation, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_values import read_json_value
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

FENCE = "```"


@dataclass(frozen=True, slots=True)
class MarkedCalls:
    """The special tokens of a format.

    Attributes:
        begin: before each call.
        separator: between the head of a call and its arguments.
        section: before the first call.
        closing: after a call, and after the last one.
        name: pattern of a call's head, whose first group is the name.
    """

    begin: str
    separator: str
    section: str
    closing: tuple[str, ...]
    name: re.Pattern[str]

    def make_parser(self, schemas: ToolSchemas) -> ToolCallParser:
        """Make the parser of one answer."""
        return ScanningParser(partial(_scan, style=self))


def _scan(scanner: Scanner, style: MarkedCalls) -> Scan[None]:
    yield from scan_answer(scanner, (style.section, style.begin), partial(_read_section, style=style))


def _read_section(scanner: Scanner, marker: str, style: MarkedCalls) -> Scan[None]:
    if marker == style.section and not (yield from read_token(scanner, (style.begin,))):
        yield from scanner.read()
        raise NotACall
    head, _ = yield from read_until(scanner, (style.separator,), 2 * MAX_NAME_CHARS)
    char = yield from read_past_space(scanner)
    is_fenced = False
    if char != "{":  # the head is the type of the call, and a line with the name follows
        scanner.unread(char)
        head, _ = yield from read_until(scanner, ("\n",), MAX_NAME_CHARS)
        is_fenced = bool((yield from read_token(scanner, (FENCE,))))
        if is_fenced:
            yield from read_token(scanner, ("json",))
        if (yield from read_past_space(scanner)) != "{":
            raise NotACall
    match = style.name.fullmatch(head.strip())
    if match is None:
        raise NotACall
    scanner.start_call(match[1])
    markers = (*style.closing, style.section, style.begin)
    yield from read_json_value(scanner, "{", scanner.add_arguments, markers)
    scanner.end_call()
    yield from read_closing(scanner, style.closing if is_fenced else [end for end in style.closing if end != FENCE])


_V3 = CallNotation(
    begin="<｜tool▁calls▁begin｜>", before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    after_name=f"\n{FENCE}json\n", after_arguments=f"\n{FENCE}<｜tool▁call▁end｜>", separator="\n",
    end="<｜tool▁calls▁end｜>",
)  # fmt: skip
DEEPSEEK = ToolFormat(
    name="deepseek",
    notation=_V3,
    auto_notations=(_V3,),
    make_parser=MarkedCalls(
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁calls▁begin｜>",
        (FENCE, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"), re.compile(r"(\S+)"),
    ).make_parser,
    has_special_markers=True,
)  # fmt: skip
_V31 = replace(
    _V3, before_name="<｜tool▁call▁begin｜>", after_name="<｜tool▁sep｜>", after_arguments="<｜tool▁call▁end｜>",
    separator="",
)  # fmt: skip
DEEPSEEK_V31 = replace(DEEPSEEK, notation=_V31, auto_notations=(_V31,))
"""The format with the notation of forced calls since V3.1; the parser reads both."""

_KIMI = CallNotation(
    begin="<|tool_calls_section_begin|>", before_name="<|tool_call_begin|>functions.",
    after_name=f":{NUMBER}<|tool_call_argument_begin|>", after_arguments="<|tool_call_end|>", separator="",
    end="<|tool_calls_section_end|>",
)  # fmt: skip
KIMI = ToolFormat(
    name="kimi",
    notation=_KIMI,
    auto_notations=(_KIMI,),
    make_parser=MarkedCalls(
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_calls_section_begin|>",
        ("<|tool_call_end|>", "<|tool_calls_section_end|>"), re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?"),
    ).make_parser,
    has_special_markers=True,
    has_named_ids=True,
)  # fmt: skip
