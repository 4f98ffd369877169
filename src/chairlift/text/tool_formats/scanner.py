"""Scanner, ScanningParser: reads an answer character by character and holds back text that may be a call.

A format is a generator that reads characters with `yield from scanner.read()`. It looks like a parser of a complete
text, and waits wherever the text ends so far. Text that was read is held until it is certain:

    read_text ─ start marker ─> the format's section ─ start_call ─> arguments ─ end_call ─> read_closing ─> read_text
                                                    └─ NotACall: the held text is text ───────────────────> read_text
"""

import re
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeVar

from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.tool_call_parser import (
    Piece,
    ReasoningText,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)

T = TypeVar("T")
Scan = Generator[None, str, T]
"""A reader of characters that returns T."""

SEPARATORS = SPACE + ",;"
THOUGHT_SEPARATOR = "\n\n"
"""Text between two thoughts of one answer."""
MAX_BLANKS = 256
"""White space characters of a thought to hold back in case they are its last ones."""


class NotACall(Exception):
    """The held text is not a call. The last character that was read may begin something else."""


class EndOfAnswer(Exception):
    """Raised in a reader where the answer ends.

    A reader with a part of an argument writes it and raises again. A reader that has put text back may go on.
    """


class Scanner:
    """The state of one answer: its pieces, and the text that was read and is not certain.

    Within a call, text is held until it becomes arguments or is dropped as syntax.

    Attributes:
        num_calls: number of calls so far.
        has_text: whether the answer has text that is not white space.
        is_reasoning: whether the text that is read now is reasoning.
        is_closing: whether the text that is read now is the end of a call.
        stops: pattern of the characters that the format has to read; the text before the next one is emitted at once.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.has_text = self.is_reasoning = self.is_closing = False
        self.is_after_call = False  # nothing but white space since the last call
        self.stops: re.Pattern[str] | None = None
        self._is_in_call = False
        self._blanks = ""  # white space at the end of a thought so far
        self._has_thought = self._is_fresh = False  # a fresh thought has no text but white space
        self._held: list[str] = []
        self._unread: deque[str] = deque()
        self._last = ""
        self._pieces: list[Piece] = []
        self._kind: tuple[type[Piece], int] = (TextDelta, 0)
        self._parts: list[str] = []  # text of the last piece, which grows

    def read(self) -> Scan[str]:
        """Read one character, which is held."""
        char = self._last = self._unread.popleft() if self._unread else (yield)
        self._held.append(char)
        return char

    def unread(self, text: str) -> None:
        """Put back the last characters that were read."""
        self._last = ""
        del self._held[len(self._held) - len(text) :]
        self._unread.extendleft(reversed(text))

    def unread_held(self) -> None:
        """Put back the held text, which is not a part of the call."""
        self.unread("".join(self._held))

    def held_text(self, start: int = 0) -> str:
        """Return the held text from an offset."""
        return "".join(self._held[start:])

    @property
    def num_held(self) -> int:
        """Number of held characters."""
        return len(self._held)

    def hold(self, text: str) -> None:
        """Hold a text that was dropped."""
        self._held.append(text)

    def drop_held(self) -> None:
        """Drop the held text, which is the syntax of a call."""
        self._held.clear()

    def emit_held(self, keep: int = 0) -> None:
        """Emit the held text except its last `keep` characters."""
        end = len(self._held) - keep
        self.emit_text("".join(self._held[:end]))
        del self._held[:end]

    def emit_text(self, text: str) -> None:
        """Emit text, or reasoning within reasoning."""
        if not text:
            return
        if self.is_reasoning:
            self._emit_reasoning(text)
            return
        self._add((TextDelta, 0), text)
        self.is_after_call = False
        self.has_text = self.has_text or not text.isspace()

    def start_reasoning(self) -> None:
        """Start a thought, which is emitted without the white space around it, but apart from one before it."""
        self.is_reasoning = self._is_fresh = True
        self._blanks = ""

    def end_reasoning(self) -> None:
        """End the thought."""
        self.is_reasoning = False

    def _emit_reasoning(self, text: str) -> None:
        if self._is_fresh:
            text = text.lstrip(SPACE)
            if text and self._has_thought:
                text = THOUGHT_SEPARATOR + text
            self._is_fresh = not text
        text = self._blanks + text
        end = len(text.rstrip(SPACE))
        if len(text) - end >= MAX_BLANKS:
            end = len(text)
        text, self._blanks = text[:end], text[end:]
        if text:
            self._has_thought = True
            self._add((ReasoningText, 0), text)

    def start_call(self, name: str) -> None:
        """Start a call; the held text is its beginning."""
        self._held.clear()
        self._is_in_call = True
        self._end_piece()
        self._pieces.append(ToolCallStart(self.num_calls, name))
        self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Add to the JSON text of the call's arguments, of which the held text was a part."""
        self._held.clear()
        self._add((ToolCallArguments, self.num_calls - 1), text)

    def end_call(self) -> None:
        """End the call, whose arguments are complete; the held text was its syntax."""
        self._held.clear()
        self._is_in_call = False
        self.is_after_call = True

    def give_up(self) -> None:
        """Emit the held text, which is not a call, except the last character, which is read again."""
        self.is_closing = False
        self.unread(self._last)
        self._is_in_call = False
        self.emit_held()

    def finish(self) -> None:
        """End the answer: held text is text, unless it is the incomplete syntax of a call."""
        held = "".join(self._held)
        if not self._is_in_call and not self.is_closing and not (self.is_after_call and not held.strip(SEPARATORS)):
            self.emit_text(held)
        self._held.clear()

    def skip_text(self, delta: str, start: int) -> int:
        """Emit the text from `start` to the next character that the format has to read; return its offset."""
        if self.stops is None:
            return start
        match = self.stops.search(delta, start)
        end = len(delta) if match is None else match.start()
        self.emit_text(delta[start:end])
        return end

    def take(self) -> list[Piece]:
        """Return and forget the pieces, adjacent ones of one kind merged."""
        self._end_piece()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, kind: tuple[type[Piece], int], text: str) -> None:
        if kind != self._kind:
            self._end_piece()
            self._kind = kind
        self._parts.append(text)

    def _end_piece(self) -> None:
        text = "".join(self._parts)
        self._parts.clear()
        if not text:
            return
        kind, index = self._kind
        if kind is ToolCallArguments:
            self._pieces.append(ToolCallArguments(index, text))
        else:
            self._pieces.append(ReasoningText(text) if kind is ReasoningText else TextDelta(text))


class ScanningParser:
    """A ToolCallParser that runs a format's generator."""

    def __init__(self, program: Callable[[Scanner], Scan[None]]) -> None:
        self._scanner = Scanner()
        self._program = program(self._scanner)
        next(self._program)

    def push(self, delta: str) -> list[Piece]:
        """Add new text; return the pieces that are certain now."""
        scanner, send = self._scanner, self._program.send
        at = scanner.skip_text(delta, 0)
        while at < len(delta):
            send(delta[at])
            at = scanner.skip_text(delta, at + 1)
        return scanner.take()

    def flush(self) -> list[Piece]:
        """Return the held-back pieces at the end of the answer, which ends the parser."""
        with suppress(EndOfAnswer):
            while True:
                self._program.throw(EndOfAnswer)
        self._scanner.finish()
        return self._scanner.take()
