"""Server-sent events, written and read; https://html.spec.whatwg.org/multipage/server-sent-events.html.

event: error          the field's name, a colon, a space that does not count, the value
data: {"a": 1}
                      an empty line sends the event off
"""

from collections.abc import Iterator
from dataclasses import dataclass

from chairlift.core.errors import ChairliftError

DONE = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's that went well, and only such a one."""

MAX_EVENT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event.

    Attributes:
        data: its lines, joined by newlines.
        event: its type; "" is "message".
        id: the last id that the stream named, in this event or before.
    """

    data: str
    event: str = ""
    id: str = ""


class EventTooLarge(ChairliftError):
    """An event has more bytes than a reader takes."""

    code = "event_too_large"


def data_event(payload: bytes) -> bytes:
    """Return the event of a payload that has no line breaks, such as JSON."""
    return b"data: " + payload + b"\n\n"


def named_event(name: bytes, payload: bytes) -> bytes:
    """Return the event of a type."""
    return b"event: " + name + b"\ndata: " + payload + b"\n\n"


def comment_block(text: bytes) -> bytes:
    """Return a comment of one line, which readers of events skip, in a block of its own."""
    return b": " + text + b"\n\n"


class EventReader:
    """Reads a stream in whatever pieces it arrives. Owns the line and the event that are not complete.

    Every byte is looked at a bounded number of times, and an event is bounded: EventTooLarge ends the reading.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line: list[bytes] = []
        self._size = 0
        self._after_return = False  # a newline now belongs to the carriage return before it
        self._is_first = True
        self._data: list[str] = []
        self._event = self._id = ""
        self._error: EventTooLarge | None = None

    def push(self, received: bytes) -> list[ServerSentEvent]:
        """Add bytes and return the complete events.

        Raises EventTooLarge once all events before it were returned.
        """
        if self._error is not None:
            raise self._error
        found: list[ServerSentEvent] = []
        try:
            for event in self._events(received):
                found.append(event)  # not extend: what came before an error counts
        except EventTooLarge as error:
            self._error = error
            if not found:
                raise
        return found

    def _events(self, received: bytes) -> Iterator[ServerSentEvent]:
        if self._after_return and received:
            self._after_return = False
            received = received.removeprefix(b"\n")
        pieces = received.splitlines(keepends=True)
        for piece in pieces:
            ended = piece.endswith((b"\n", b"\r"))
            line = piece.rstrip(b"\r\n") if ended else piece
            self._size += len(line)
            if self._size > self._max:
                raise EventTooLarge(f"an event has more bytes than the limit, {self._max}")
            self._line.append(line)
            if not ended:
                continue
            whole = b"".join(self._line)
            self._line.clear()
            yield from self._take(whole)
        self._after_return = received.endswith(b"\r") if received else self._after_return

    def _take(self, raw: bytes) -> Iterator[ServerSentEvent]:
        """Process a whole line; an empty one ends the event."""
        line = raw.decode("utf-8", "replace")
        if self._is_first:
            line, self._is_first = line.removeprefix("\ufeff"), False
        if line:
            self._set(*line.partition(":")[::2])
            return
        self._size = 0
        if self._data:
            yield ServerSentEvent("\n".join(self._data), self._event, self._id)
        self._data, self._event = [], ""

    def _set(self, name: str, value: str) -> None:
        """Process a field; a line that starts with a colon is a comment, and unknown fields are ignored."""
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
