"""ToolCallParser, Piece: the interface of parsers of tool calls, and the pieces that they return."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the assistant."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """New text of the model's reasoning, in formats that mark it themselves."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The start of a call; `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CustomCallStart:
    """The start of a call of a custom tool."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CustomCallInput:
    """More of the text that is the input of a custom tool."""

    index: int
    text: str


Piece = TextDelta | ReasoningText | ToolCallStart | ToolCallArguments | CustomCallStart | CustomCallInput


class ToolCallParser(Protocol):
    """Separates the calls of one answer from its text while the answer streams.

    The pieces, merged, do not depend on how the answer is split. No text is lost, except the syntax of calls. The
    arguments of a call are streamed once its name is known. No input raises, and each character takes constant time.
    """

    def push(self, delta: str) -> list[Piece]:
        """Add new text; return the pieces that are certain now."""
        ...

    def flush(self) -> list[Piece]:
        """Return the held-back pieces at the end of the answer, which ends the parser."""
        ...
