"""GEMMA, GEMMA4, TOOL_CODE: calls as Gemma writes them.

gemma (FunctionGemma)   <start_function_call>call:f{a:<escape>x<escape>,b:1}<end_function_call>
gemma4                  <|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>, after <|channel>thought reasoning<channel|>
tool-code (Gemma 3)     a fence of ```tool_code or ```python with Python calls of tools, f(a=1) or [f(a=1), g()]
"""

import re
from dataclasses import dataclass, field, replace
from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import read_closing, read_until, scan_answer
from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.base import MAX_NAME_CHARS, CallNotation, KeywordArguments, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_calls import JsonCalls
from chairlift.text.tool_formats.non_json_values import cut_gemma_json, gemma_json, quoted_by, read_raw
from chairlift.text.tool_formats.pythonic import read_python_block
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

_WORDS = re.compile(r"\w\s+\w")
_NAME = re.compile(r"\s*call:\s*([\w.-][\w.:-]*)\s*")


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """The markers of a format.

    Attributes:
        start: before a call.
        end: after a call.
        quote: before and after a string.
        result: start of the result, which a model may write behind its calls where it is not the end of its answers.
        reasoning: start of reasoning -> its end.
    """

    start: str
    end: str
    quote: str
    result: str
    reasoning: dict[str, str] = field(default_factory=dict)

    def make_parser(self, schemas: ToolSchemas) -> ToolCallParser:
        """Make the parser of one answer."""
        return ScanningParser(partial(_scan, style=self))

    @property
    def notation(self) -> CallNotation:
        """The notation of forced calls."""
        return CallNotation(
            begin=self.start, before_name="call:", after_name="{", after_arguments="}",
            separator=f"{self.end}{self.start}", end=self.end,
            keyword_arguments=KeywordArguments(after_key=":", separator=",", quote=self.quote),
        )  # fmt: skip


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
    yield from read_closing(scanner, (style.end, style.result))


def _parser_of_tool_code(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan_tool_code, schemas=schemas))


def _scan_tool_code(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    yield from scan_answer(scanner, ("```tool_code", "```python"), partial(_read_fence, schemas=schemas))


def _read_fence(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    yield from read_python_block(scanner, schemas, ("```",))


_GEMMA4 = GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>", {"<|channel>thought": "<channel|>"})
_GEMMA = GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>")
GEMMA = ToolFormat(
    name="gemma",
    make_parser=_GEMMA.make_parser,
    notation=_GEMMA.notation,
    has_special_markers=True,
)
GEMMA4 = ToolFormat(
    name="gemma4",
    make_parser=_GEMMA4.make_parser,
    notation=_GEMMA4.notation,
    has_special_markers=True,
    make_text_parser=lambda: JsonCalls(reasoning=_GEMMA4.reasoning).make_parser({}),
)
TOOL_CODE = ToolFormat(name="tool-code", make_parser=_parser_of_tool_code)
GEMMA4_WITH_THOUGHTS = replace(GEMMA4, make_parser=replace(_GEMMA4, reasoning={}).make_parser, make_text_parser=None)
"""GEMMA4 with a parser that leaves reasoning in the text."""
