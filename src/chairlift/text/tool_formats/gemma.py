"""GEMMA, GEMMA4, TOOL_CODE: calls as Gemma writes them.

gemma (FunctionGemma)   <start_function_call>call:f{a:<escape>x<escape>,b:1}<end_function_call>
gemma4                  <|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>, after <|channel>thought reasoning<channel|>
tool-code (Gemma 3)     a fence of ```tool_code or ```python with Python calls of tools, f(a=1) or [f(a=1), g()]
"""

import re
from dataclasses import dataclass, field
from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import read_closing, read_until, scan_answer
from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.base import MAX_NAME_CHARS, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_calls import JsonCalls
from chairlift.text.tool_formats.non_json_values import cut_gemma_json, gemma_json, quoted_by, read_raw
from chairlift.text.tool_formats.pythonic import read_python_block
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

_WORDS = re.compile(r"\w\s+\w")
_NAME = re.compile(r"\s*call:\s*([\w.-][\w.:-]*)\s*")


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """The markers of a format: around a call, and around a string."""

    start: str
    end: str
    quote: str
    reasoning: dict[str, str] = field(default_factory=dict)

    def make_parser(self, schemas: ToolSchemas) -> ToolCallParser:
        """Make the parser of one answer."""
        return ScanningParser(partial(_scan, style=self))


def _scan(scanner: Scanner, style: GemmaCalls) -> Scan[None]:
    yield from scan_answer(scanner, (style.start,), partial(_read_call, style=style), reasoning=style.reasoning)


def _read_call(scanner: Scanner, marker: str, style: GemmaCalls) -> Scan[None]:
    head, _ = yield from read_until(scanner, ("{",), MAX_NAME_CHARS)
    match = _NAME.fullmatch(head)
    if match is None:
        raise NotACall
    scanner.start_call(match[1])
    arguments, read_quoted, end = ArgumentsWriter(scanner), quoted_by(style.quote), ","
    markers = (style.end, style.start)
    while end == ",":
        raw: list[str] = []
        try:
            end = yield from read_raw(scanner, raw, ",:", read_quoted, markers)
        except EndOfAnswer:
            if _WORDS.search("".join(raw)) is not None:  # it is text, not the beginning of a key
                scanner.emit_text("".join(raw))
            raise
        key = "".join(raw).replace(style.quote, "").strip().strip('"')
        if end != ":":  # no value follows
            scanner.emit_text(key)
            continue
        raw = []
        try:
            end = yield from read_raw(scanner, raw, ",", read_quoted, markers)
        except EndOfAnswer:
            arguments.add_cut(key, cut_gemma_json("".join(raw), style.quote))
            raise
        arguments.add(key, gemma_json("".join(raw), style.quote))
    arguments.end()
    yield from read_closing(scanner, (style.end,))


def _parser_of_tool_code(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan_tool_code, schemas=schemas))


def _scan_tool_code(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    yield from scan_answer(scanner, ("```tool_code", "```python"), partial(_read_fence, schemas=schemas))


def _read_fence(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    yield from read_python_block(scanner, schemas, ("```",))


_GEMMA4 = GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>', {"<|channel>thought": "<channel|>"})
GEMMA = ToolFormat(
    name="gemma",
    make_parser=GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>").make_parser,
    has_special_markers=True,
)
GEMMA4 = ToolFormat(
    name="gemma4",
    make_parser=_GEMMA4.make_parser,
    has_special_markers=True,
    make_text_parser=lambda: JsonCalls(reasoning=_GEMMA4.reasoning).make_parser({}),
)
TOOL_CODE = ToolFormat(name="tool-code", make_parser=_parser_of_tool_code)
