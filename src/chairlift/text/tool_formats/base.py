"""ToolFormat, ToolCallParser: what a format of tool calls is, and the pieces that its parser returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""Tool name -> JSON Schema of its arguments."""

SPACE = " \t\r\n"
MAX_NAME_CHARS = 256
"""Most characters that a parser reads as the name of a function before it treats them as text."""


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


Piece = TextDelta | ReasoningText | ToolCallStart | ToolCallArguments


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNotation:
    """The text around the name and the arguments of calls, for formats whose calls are not JSON objects.

    Attributes:
        begin: before the first call.
        before_name: before a name.
        after_name: between a name and its arguments.
        after_arguments: after the arguments.
        separator: between two calls; None where an answer has one call.
        end: after the last call.
        reasoning: start and end of reasoning before the calls, in formats that mark it themselves.
    """

    begin: str = ""
    before_name: str
    after_name: str
    after_arguments: str = ""
    separator: str | None = None
    end: str = ""
    reasoning: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format of tool calls.

    Attributes:
        name: name of the format, for settings.
        make_parser: makes the parser of one answer, from the schemas of the tools that the request offers.
        prefill: beginning of an answer that calls a tool, up to the brace of the call; a forced call's prompt ends
            with it, unless the model reasons first.
        notation: the notation of forced calls; None for JSON objects after the prefill.
        auto_notation: the notation of calls that the model may choose to make, where a grammar can enforce it: its
            first marker stands only before a call. None for the others.
        follows_reasoning: whether the model may reason before a forced call, so that the answer has the prefill.
        token_ids: special token of the prefill or the notation -> its id.
        separator: what stands between two forced calls.
        name_key: key of the function's name in a forced call.
        arguments_key: key of the arguments in a forced call.
        has_special_markers: whether calls are written with special tokens, which must stay in the text.
        make_text_parser: makes the parser of an answer that may not call, in formats that mark reasoning and text
            themselves; None in the others.
        is_generic: whether the model knows no format, so that a prompt explains one.
        is_enforced: whether a grammar enforces the format also when the model may choose to call.
        num_id_chars: length of a call's id that the chat template demands; 0 for any.
        has_named_ids: whether the chat template writes the id of a call in place of its name: functions.f:0.
    """

    name: str
    make_parser: Callable[[ToolSchemas], ToolCallParser]
    prefill: str = ""
    notation: CallNotation | None = None
    auto_notation: CallNotation | None = None
    follows_reasoning: bool = False
    token_ids: Mapping[str, int] = field(default_factory=dict)
    separator: str = "; "
    name_key: str = "name"
    arguments_key: str = "arguments"
    has_special_markers: bool = False
    make_text_parser: Callable[[], ToolCallParser] | None = None
    is_generic: bool = False
    is_enforced: bool = False
    num_id_chars: int = 0
    has_named_ids: bool = False
