"""AttemptReader: turns the bytes of one replica's response into the events of its attempt, in whatever pieces it comes.

OPAQUE: whole events pass unparsed, so that the client never gets half an event before an error.

Comments are no output: a replica that sends nothing else is late, and its request may still go elsewhere.
"""

import re
from typing import Any

import orjson

from chairlift.core.errors import error_from_wire
from chairlift.core.router_errors import ReplicaFailed
from chairlift.observability.request_counters import OTHER
from chairlift.protocol.sse import DONE, MAX_EVENT_BYTES
from chairlift.router.attempts.actions import ResponseMode
from chairlift.router.attempts.chunks import DATA, BadChunk, Chunk, ChunkKind, number_of, parse_chunk
from chairlift.router.attempts.events import (
    AttemptBroken,
    AttemptEvent,
    ChunksReceived,
    FailureReason,
    RequestErrorReported,
    ResponseEnded,
)

MAX_WHOLE_BYTES = 256 * 2**20
"""Bytes of a response that is not streamed, with the logprobs of all its tokens."""

FAULT_CODES = frozenset({"engine_dead", "internal_error"})
"""Codes of errors in a stream that are the replica's fault."""

UNAVAILABLE_CODES = frozenset(
    {"out_of_blocks", "overloaded", "queue_full", "unavailable", "draining", "starting", "stopped", "dead"}
)
"""Codes of errors in a stream that another replica need not have: this one is full, or drains."""


MAX_COMMENT_BYTES = 100
"""Bytes of a replica's comment that the router passes on."""

_DONE_LINES = (b"data: [DONE]", b"data:[DONE]")
_ERROR = b"event: error\ndata: "
_BLOCK = re.compile(rb".*?(?:\n\n|\r\n\r\n|\r\r)", re.DOTALL)


class AttemptReader:
    """Reads the response of one attempt. Owns the bytes of an event that is not complete.

    Attributes:
        comment: text of the last comment of the stream; b"" without one.
        num_comments: comments so far.
    """

    def __init__(self, attempt: int, mode: ResponseMode, *, max_bytes: int | None = None) -> None:
        """Start a response; `max_bytes` bounds one event, or the whole body."""
        self._attempt = attempt
        self._mode = mode
        is_whole = mode in (ResponseMode.WHOLE, ResponseMode.PROGRESS)
        self._max = max_bytes or (MAX_WHOLE_BYTES if is_whole else MAX_EVENT_BYTES)
        self._pending = bytearray()
        self._searched = 0
        self._has_ended = self._has_passed = False
        self.comment, self.num_comments = b"", 0

    def push(self, received: bytes) -> list[AttemptEvent]:
        """Add bytes; return the events of what is complete. Nothing follows the end of a response."""
        if self._has_ended:
            return []
        self._pending += received
        if self._mode is ResponseMode.WHOLE:
            events: list[AttemptEvent] = []
        elif self._mode is ResponseMode.BYTES:
            events = [ChunksReceived(self._attempt, (Chunk(received),))]
            self._pending.clear()
        elif self._mode is ResponseMode.OPAQUE:
            events = self._pass_events()
        else:
            try:
                events = self._read_events()
            except BadChunk:
                events = [AttemptBroken(self._attempt, FailureReason.BAD_STREAM)]
        # Behind the reading: what is pending is only what no event has taken.
        if len(self._pending) > self._max:
            events = [*events, self._too_large()]
        self._has_ended = any(not isinstance(event, ChunksReceived) for event in events)
        return events

    def _too_large(self) -> AttemptEvent:
        """Return what a body over the limit means: other replicas would repeat it, and this one is not ill."""
        if self._mode is not ResponseMode.WHOLE:
            return AttemptBroken(self._attempt, FailureReason.BAD_STREAM)
        self._pending.clear()
        message = f"the response has more than {self._max} bytes, the limit of a router"
        error = {"message": message, "code": ReplicaFailed.code}
        return RequestErrorReported(self._attempt, orjson.dumps({"error": error}))

    def close(self, *, is_reset: bool = False) -> list[AttemptEvent]:
        """Return the event of the connection's end; `is_reset` is whether the response's framing was incomplete."""
        if self._has_ended:
            return []
        self._has_ended = True
        if is_reset:
            return [AttemptBroken(self._attempt, FailureReason.RESET)]
        if self._mode in (ResponseMode.WHOLE, ResponseMode.BYTES):
            return [ResponseEnded(self._attempt, bytes(self._pending))]
        if self._mode is ResponseMode.OPAQUE and self._pending.strip() in _DONE_LINES:  # without an empty line
            return [ChunksReceived(self._attempt, (Chunk(DONE),)), ResponseEnded(self._attempt)]
        return [AttemptBroken(self._attempt, FailureReason.EOF)]

    def _pass_events(self) -> list[AttemptEvent]:
        """Return all complete events as one chunk, and the end behind `[DONE]`."""
        pending = self._pending
        # Servers of other projects may end lines by any of the three ways of SSE. Without a match, `end` is at most 3.
        end = max(pending.rfind(b"\n\n") + 2, pending.rfind(b"\r\n\r\n") + 4, pending.rfind(b"\r\r") + 2)
        if end < 4:
            return []
        payload = bytes(pending[:end])
        del pending[:end]
        # A line of an event cannot begin so: its data have no line breaks.
        if payload.startswith(b":") or b"\n:" in payload or b"\r:" in payload:
            payload = self._without_comments(payload)
        if not payload:
            return []
        # A Chairlift server's error behind comments; behind output it passes as any event.
        if not self._has_passed and payload.startswith(_ERROR):
            try:
                return [error_event(self._attempt, payload[len(_ERROR) :].partition(b"\n")[0])]
            except BadChunk:
                pass
        self._has_passed = True
        events: list[AttemptEvent] = [ChunksReceived(self._attempt, (Chunk(payload),))]
        # The end is short, and nothing follows it, so only the last bytes are searched.
        if any(line in _DONE_LINES for line in payload[-64:].splitlines()):
            events.append(ResponseEnded(self._attempt))
        return events

    def _without_comments(self, payload: bytes) -> bytes:
        """Return whole blocks without those that are only comments; other servers send comments, too."""
        return b"".join([block for block in _BLOCK.findall(payload) if not self._take_comment(block)])

    def _take_comment(self, block: bytes) -> bool:
        """Return whether a block has only comments, and note the text of the last one."""
        lines = [line for line in block.splitlines() if line]
        is_comment = all(line.startswith(b":") for line in lines)
        if lines and is_comment:
            self.comment = lines[-1][1:].strip()[:MAX_COMMENT_BYTES]
            self.num_comments += 1
        return is_comment

    def _read_events(self) -> list[AttemptEvent]:
        """Return the events of a Chairlift server; chunks that came together stay together."""
        pending, begin = self._pending, 0
        chunks: list[Chunk] = []
        last: list[AttemptEvent] = []
        while not last and (end := pending.find(b"\n\n", max(begin, self._searched))) >= 0:
            end += 2
            payload = bytes(pending[begin:end])
            begin = end
            if payload.startswith(DATA) and payload != DONE and self._mode is ResponseMode.TOKENS:
                chunks.append(parse_chunk(payload))
            elif payload == DONE:
                last = [ResponseEnded(self._attempt, payload)]
            elif payload.startswith(b"event: "):
                last = self._read_named(payload, chunks)
            elif payload.startswith(b":"):
                self._take_comment(payload)
        del pending[:begin]
        # The last byte may be the first half of the empty line.
        self._searched = max(0, len(pending) - 1)
        return [ChunksReceived(self._attempt, chunks), *last] if chunks else last

    def _read_named(self, payload: bytes, chunks: list[Chunk]) -> list[AttemptEvent]:
        """Add the chunk of a progress event, or return the event that ends the response."""
        name, _, data = payload.rstrip(b"\n").partition(b"\ndata: ")
        match name:
            case b"event: progress":
                chunks.append(_progress(_object(data)))
                return []
            case b"event: response":
                return [ResponseEnded(self._attempt, data)]
            case b"event: error":
                return [error_event(self._attempt, data)]
        return []  # a type of a later version


def error_event(attempt: int, payload: bytes) -> AttemptEvent:
    """Return what an error in a stream means: another replica may do better, or the request itself fails."""
    error = _object(payload).get("error")
    code = str(error.get("code")) if isinstance(error, dict) else ""
    if code in FAULT_CODES:
        return AttemptBroken(attempt, FailureReason.ERROR_EVENT)
    if code in UNAVAILABLE_CODES or (isinstance(error, dict) and error.get("retryable") is True):
        return AttemptBroken(attempt, FailureReason.UNAVAILABLE)
    return RequestErrorReported(attempt, payload)


def error_of(payload: bytes) -> tuple[str, str]:
    """Return code and message of an error's JSON."""
    error = _object(payload).get("error")
    if not isinstance(error, dict):
        return error_from_wire("", "", {}).code, "the replica reported an error without a message"
    return str(error.get("code")), str(error.get("message"))


def error_param_of(payload: bytes) -> str | None:
    """Return the field of the request that an error's JSON names, None where it names none."""
    error = _object(payload).get("error")
    param = error.get("param") if isinstance(error, dict) else None
    return param if isinstance(param, str) else None


def error_code_of(body: bytes) -> str:
    """Return the code of an error response's body; "other" where it has none."""
    try:
        error = _object(body).get("error")
    except BadChunk:
        error = None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) and code else OTHER


def _progress(data: dict[str, Any]) -> Chunk:
    try:
        token_ids = tuple(map(number_of, data["token_ids"]))
        position = None if data.get("position") is None else number_of(data["position"])
        index = number_of(data["index"])
        return Chunk(b"", ChunkKind.CHOICE, index, token_ids, position, logprobs=data.get("logprobs"))
    except (KeyError, TypeError, ValueError):
        raise BadChunk("a progress event has no index or no token ids") from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BadChunk(f"an event is no JSON object: {data[:200]!r}")
    return value
