"""CallsOrJsonParser: the parser of an answer that is calls behind a marker, or JSON without any call.

A string of the JSON may contain text that the format's parser would read as a call.
"""

from chairlift.text.optional_call_grammar import marker_of
from chairlift.text.tool_formats.base import SPACE, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.tool_call_parser import Piece, TextDelta, ToolCallParser


class CallsOrJsonParser:
    """A ToolCallParser that reads calls only in an answer that begins with the marker of a call."""

    def __init__(self, tool_format: ToolFormat, schemas: ToolSchemas) -> None:
        self._markers = [marker_of(notation) for notation in tool_format.auto_notations]
        self._parser = tool_format.make_parser(schemas)
        self._start = ""  # until it is certain which of both it begins
        self._has_calls: bool | None = None

    def push(self, delta: str) -> list[Piece]:
        """Add new text; return the pieces that are certain now."""
        if self._has_calls is None:
            self._start += delta
            begin = self._start.lstrip(SPACE)
            if any(begin.startswith(marker) for marker in self._markers):
                self._has_calls = True
            elif not any(marker.startswith(begin) for marker in self._markers):
                self._has_calls = False
            else:
                return []
            delta = self._start
        return self._parser.push(delta) if self._has_calls else _text(delta)

    def flush(self) -> list[Piece]:
        """Return the held-back pieces at the end of the answer, which ends the parser."""
        if self._has_calls is None:
            return _text(self._start)
        return self._parser.flush() if self._has_calls else []


def _text(text: str) -> list[Piece]:
    return [TextDelta(text)] if text else []


def calls_or_json_parser(tool_format: ToolFormat, schemas: ToolSchemas) -> ToolCallParser:
    """Make the parser of an answer that is calls or JSON; in a format with channels, these tell them apart."""
    if tool_format.make_answer_parser is not None:
        return tool_format.make_answer_parser(schemas)
    return CallsOrJsonParser(tool_format, schemas)
