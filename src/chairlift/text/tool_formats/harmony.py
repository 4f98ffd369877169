"""HARMONY: the channels of GPT-OSS, which mark reasoning, text and calls with special tokens.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The recipient may also stand before the channel. Commentary without a recipient is text.
"""

import re
from dataclasses import replace
from functools import partial

from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_closing,
    read_past_space,
    read_text,
    read_text_before,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.base import CallNotation, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_values import json_string, read_json_value
from chairlift.text.tool_formats.scanner import EndOfAnswer, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END = "<|end|>"
ENDS = (END, "<|return|>", "<|call|>")
FUNCTIONS = "functions."
MAX_HEADER_CHARS = 1024
"""Most characters of a header; a longer one is text."""
MAX_RECIPIENT_CHARS = 128
"""Most characters of a header that begins with its recipient; a longer one is text that begins with to=."""
HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code")

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_SPECIAL = re.compile(r"<\|\w+\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def _make_parser(schemas: ToolSchemas | None = None, *, keeps_channels: bool = False) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas, keeps_channels=keeps_channels))


def _make_answer_parser(schemas: ToolSchemas, *, keeps_channels: bool = False) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas, keeps_channels=keeps_channels, ends_with_final=True))


def _scan(
    scanner: Scanner, schemas: ToolSchemas | None, *, keeps_channels: bool, ends_with_final: bool = False
) -> Scan[None]:  # fmt: skip
    section = partial(_read_message, schemas=schemas, keeps_channels=keeps_channels, ends_with_final=ends_with_final)
    yield from scan_answer(scanner, (START, CHANNEL), section, bare=(" to=", "to="))


def _read_message(
    scanner: Scanner, marker: str, schemas: ToolSchemas | None, *, keeps_channels: bool, ends_with_final: bool
) -> Scan[None]:  # fmt: skip
    """Read a message behind its start. With `keeps_channels`, all but calls is text, the markers included."""
    is_marked = marker in (START, CHANNEL)
    ends = (MESSAGE, *ENDS, START, *((CHANNEL,) if marker == CHANNEL else ()))
    limit = MAX_HEADER_CHARS if is_marked else MAX_RECIPIENT_CHARS
    try:
        header, end = yield from read_until(scanner, ends, limit)
    except EndOfAnswer:
        scanner.is_closing = is_marked and not keeps_channels and _is_cut_header(scanner.held_text(len(marker)))
        raise
    if end != MESSAGE:
        scanner.unread(end)
        scanner.emit_held()
        if not keeps_channels:
            yield from read_closing(scanner, ENDS)
        return
    header = marker + header
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    name = recipient[1] if recipient is not None else ""
    if schemas is not None and (name.startswith(FUNCTIONS) or name in schemas):
        yield from _read_call(scanner, name.removeprefix(FUNCTIONS) or name)
        return
    if keeps_channels:
        scanner.emit_held()
        return
    scanner.drop_held()
    if ends_with_final and channel is not None and channel[1] == "final":
        yield from _read_last_text(scanner)
    is_call = name.startswith(FUNCTIONS)  # that the request does not allow
    if not is_call and (name or (channel is not None and channel[1] == "analysis")):
        scanner.start_reasoning()
    end = yield from read_text(scanner, (*ENDS, START, CHANNEL))
    scanner.end_reasoning()
    if end in ENDS:
        scanner.drop_held()
    else:
        scanner.unread(end)


def _read_last_text(scanner: Scanner) -> Scan[None]:
    """Read text to the end of the answer, with all markers except one at the end."""
    while True:
        yield from read_text(scanner, ENDS)
        scanner.is_closing = True
        char = yield from scanner.read()
        scanner.is_closing = False
        scanner.unread(char)
        scanner.emit_held()


def _is_cut_header(header: str) -> bool:
    """Return whether a text is the beginning of a header, not of a message whose header has no end."""
    *words, last = _SPECIAL.sub(" ", header).split(" ")
    return all(not word or word in HEADER_WORDS or word.startswith("to=") for word in words) and (
        last.startswith(("to=", "<")) or any(word.startswith(last) for word in (*HEADER_WORDS, "to="))
    )


def _read_call(scanner: Scanner, name: str) -> Scan[None]:
    scanner.start_call(name)
    markers = (*ENDS, START, CHANNEL)
    first = yield from read_past_space(scanner)
    if first == "{":
        yield from read_json_value(scanner, first, scanner.add_arguments, markers)
    else:
        scanner.unread(first)
        arguments = _StringArguments(scanner)
        end = yield from read_text_before(scanner, markers, arguments.add)
        arguments.end()
        scanner.unread(end)
    scanner.end_call()
    yield from read_closing(scanner, ENDS)


class _StringArguments:
    """Writes arguments that are not JSON as one JSON string; no text is an empty object."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._has_text = False

    def add(self, text: str) -> None:
        """Add text to the string."""
        self._scanner.add_arguments(("" if self._has_text else '"') + json_string(text)[1:-1])
        self._has_text = True

    def end(self) -> None:
        """End the string."""
        self._scanner.add_arguments('"' if self._has_text else "{}")


_REASONING = ReasoningPrefix(
    starts=(f"{CHANNEL}analysis{MESSAGE}",), ends=(f"{END}{START}assistant",), excluded=(*ENDS, START, CHANNEL)
)
HARMONY = ToolFormat(
    name="harmony",
    make_parser=_make_parser,
    notation=CallNotation(
        begin=f"{CHANNEL}commentary to={FUNCTIONS}",
        before_name="",
        after_name=f" <|constrain|>json{MESSAGE}",
        reasoning=_REASONING,
    ),
    auto_notations=tuple(
        CallNotation(before_name=before, after_name=f"{after}{json}{MESSAGE}", reasoning=_REASONING)
        for before, after in (
            (f"{CHANNEL}commentary to={FUNCTIONS}", " "),
            (f" to={FUNCTIONS}", f"{CHANNEL}commentary "),
        )
        for json in ("<|constrain|>json", "json")
    ),
    other_markers=(END, START),
    has_special_markers=True,
    make_text_parser=_make_parser,
    make_answer_parser=_make_answer_parser,
)
HARMONY_WITH_CHANNELS = replace(
    HARMONY,
    make_parser=partial(_make_parser, keeps_channels=True),
    make_text_parser=partial(_make_parser, keeps_channels=True),
    make_answer_parser=partial(_make_answer_parser, keeps_channels=True),
)
"""HARMONY without reasoning: what is not a call stays text, with its channels."""
