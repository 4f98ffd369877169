"""HARMONY: the channels of GPT-OSS, which mark reasoning, text and calls with special tokens.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The recipient may also stand before the channel. Commentary without a recipient is text.
"""

import math
import re
from functools import partial

from chairlift.text.tool_formats.base import ToolCallParser, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_values import json_string, read_json_value
from chairlift.text.tool_formats.readers import read_closing, read_past_space, read_text, read_until, scan_answer
from chairlift.text.tool_formats.scanner import Scan, Scanner, ScanningParser

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
FUNCTIONS = "functions."
MAX_HEADER_CHARS = 1024
"""Most characters of a header; a longer one is text."""

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def _make_parser(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas))


def _scan(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    section = partial(_read_message, schemas=schemas)
    yield from scan_answer(scanner, (START, CHANNEL), section, bare=(" to=", "to="))


def _read_message(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    scanner.is_closing = True  # an incomplete header is no text
    header, _ = yield from read_until(scanner, (MESSAGE,), MAX_HEADER_CHARS)
    scanner.is_closing = False
    header = marker + header
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    name = recipient[1] if recipient is not None else ""
    if name.startswith(FUNCTIONS) or name in schemas:
        yield from _read_call(scanner, name.removeprefix(FUNCTIONS) or name)
        return
    scanner.drop_held()
    scanner.is_reasoning = bool(name) or (channel is not None and channel[1] == "analysis")
    end = yield from read_text(scanner, (*ENDS, START, CHANNEL))
    scanner.is_reasoning = False
    if end in ENDS:
        scanner.drop_held()
    else:
        scanner.unread(end)


def _read_call(scanner: Scanner, name: str) -> Scan[None]:
    scanner.start_call(name)
    first = yield from read_past_space(scanner)
    if first == "{":
        yield from read_json_value(scanner, first, scanner.add_arguments)
    else:
        scanner.unread(first)
        text, end = yield from read_until(scanner, (*ENDS, START, CHANNEL), math.inf)
        scanner.add_arguments(json_string(text) if text else "{}")
        scanner.unread(end)
    scanner.end_call()
    yield from read_closing(scanner, ENDS)


HARMONY = ToolFormat(
    name="harmony",
    make_parser=_make_parser,
    prefill="<|channel|>commentary to=functions <|constrain|>json<|message|>",
    has_special_markers=True,
    parses_every_answer=True,
)
