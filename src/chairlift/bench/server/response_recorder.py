"""Answers: what one streamed answer was, read with as little work a chunk as possible.

Chunks are not parsed as JSON. Two marks are looked for in each: ids of tokens (`return_token_ids`), or else a text that
is not empty; a quotation mark inside of a JSON string has a backslash before it, so that no text can look like a mark.
Usage and errors are parsed; a stream has one of either.
"""

import json
import math
import re
import time
from array import array
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from chairlift.bench.server.http_client import ExchangeEnd, ExchangeEndKind, Headers
from chairlift.protocol.sse import Event, EventReader

TOKEN_IDS = re.compile(r'"token_ids"\s*:\s*\[([^\]]*)\]')
TEXT = re.compile(r'"(?:text|content|reasoning_content|reasoning|arguments)"\s*:\s*"(?!")')
ERROR = re.compile(r'"error"\s*:\s*\{|"object"\s*:\s*"error"')
USAGE = re.compile(r'"usage"\s*:\s*\{')
MAX_ERROR_BYTES = 65_536
REFUSALS = (429, 503)


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    REFUSED = "refused"
    BAD_STATUS = "bad_status"
    ERROR_EVENT = "error_event"
    UNFINISHED = "unfinished"
    CONNECTION_LOST = "cut"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    INVALID_RESPONSE = "garbage"
    INTERRUPTED = "interrupted"


TERMINAL = frozenset({Outcome.OK, Outcome.REFUSED, Outcome.BAD_STATUS, Outcome.ERROR_EVENT})
"""What a server said itself, to the end."""


@dataclass(slots=True)
class HttpRequestRecord:
    """One request, as its client saw it. Times are seconds since the phase began.

    Attributes:
        due: when it was to be sent.
        sent: when it was, before a connection was looked for.
        asked_tokens: of output; 0 where it may end earlier.
        ended: when its answer was over.
        outcome: how; INTERRUPTED until it is over.
        status: of HTTP, 0 where none came.
        code: of the error; "" where there was none.
        why: a few words about an end that was no answer.
        arrivals: when news came: chunks with tokens.
        weights: tokens of each, where ids came; else 1.
        usage_tokens: of output, as the server says at the end.
        prompt_tokens: as it says.
        has_ids: whether weights are counts of tokens.
        retry_after: seconds, where it said so.
    """

    due: float
    sent: float
    asked_tokens: int = 0
    ended: float = math.nan
    outcome: Outcome = Outcome.INTERRUPTED
    status: int = 0
    code: str = ""
    why: str = ""
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    weights: "array[int]" = field(default_factory=lambda: array("I"))
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    has_ids: bool = False
    retry_after: float | None = None

    @property
    def output_tokens(self) -> int:
        """As the server says, or else as they were counted."""
        return sum(self.weights) if self.usage_tokens is None else self.usage_tokens

    @property
    def first(self) -> float | None:
        """Seconds from when it was due to the first token."""
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Seconds a token behind the first one; None for a single one."""
        tokens = self.output_tokens
        return (self.arrivals[-1] - self.arrivals[0]) / (tokens - 1) if self.arrivals and tokens > 1 else None

    @property
    def is_miscounted(self) -> bool:
        """Whether the ids that came are not as many as the server says."""
        return self.has_ids and self.usage_tokens is not None and sum(self.weights) != self.usage_tokens


class ResponseRecorder:
    """Takes the answer to one request and fills in its record. `began` is the phase's time.monotonic()."""

    def __init__(self, record: HttpRequestRecord, began: float) -> None:
        self._record = record
        self._began = began
        self._reader = EventReader()
        self._is_done = self._has_error = False
        self._body = bytearray()

    def head(self, status: int, headers: Headers) -> None:
        """See Taker."""
        self._record.status = status
        named = dict(headers)
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ValueError("the answer is compressed, though nobody asked for it")
        self._record.retry_after = _retry_after(named)

    def body(self, piece: bytes, now: float) -> None:
        """See Taker."""
        if self._record.status == 200:
            for event in self._reader.push(piece):
                self._take(event, now)
        elif len(self._body) < MAX_ERROR_BYTES:
            self._body += piece

    def _take(self, event: Event, now: float) -> None:
        data, record = event.data, self._record
        if data == "[DONE]":
            self._is_done = True
            return
        if event.event == "error" or ERROR.search(data):
            self._has_error = True
            record.code = _code(data, "error")
            return
        if found := TOKEN_IDS.search(data):
            record.has_ids = True
            weight = found[1].count(",") + 1 if found[1].strip() else 0
        else:
            weight = int(not record.has_ids and TEXT.search(data) is not None)
        if weight:
            record.arrivals.append(now - self._began)
            record.weights.append(weight)
        if USAGE.search(data):
            _note_usage(data, record)

    def end(self, ended: ExchangeEnd) -> None:
        """Note how it ended."""
        record = self._record
        record.ended, record.why = ended.at - self._began, ended.why
        record.outcome = self._outcome(ended.how)
        if record.outcome in (Outcome.REFUSED, Outcome.BAD_STATUS):
            record.code = _code(self._body.decode("utf-8", "replace"), f"http_{record.status}")
        elif record.outcome is not Outcome.OK and not record.code:
            record.code = record.outcome.value

    def said(self) -> str:
        """Return the words of an answer that is an error, with its status."""
        return f"{error_message_of(bytes(self._body))} ({self._record.status})"

    def _outcome(self, how: ExchangeEndKind) -> Outcome:
        if self._has_error:
            return Outcome.ERROR_EVENT
        if self._is_done and how in (ExchangeEndKind.COMPLETE, ExchangeEndKind.CONNECTION_LOST):
            return Outcome.OK
        if how is not ExchangeEndKind.COMPLETE:
            return Outcome(how.value)
        if self._record.status == 200:
            return Outcome.UNFINISHED
        return Outcome.REFUSED if self._record.status in REFUSALS else Outcome.BAD_STATUS


def error_message_of(body: bytes) -> str:
    """Return the sentence of an error's body: OpenAI's message, or the beginning of what there is."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body.decode("utf-8", "replace")[:200].strip() or "it says nothing"


def _code(text: str, fallback: str) -> str:
    try:
        error = json.loads(text)["error"]
        return str(error.get("code") or error.get("type") or fallback)[:64]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return fallback


def _note_usage(data: str, record: HttpRequestRecord) -> None:
    try:
        usage: Any = json.loads(data)["usage"]
        record.prompt_tokens, record.usage_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return


def _retry_after(named: dict[bytes, bytes]) -> float | None:
    for name, scale in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        try:
            return float(named[name]) / scale
        except (KeyError, ValueError):
            continue
    try:  # a date is the other way to say it
        when = parsedate_to_datetime(named[b"retry-after"].decode("latin-1"))
        return max(0.0, when.timestamp() - time.time())
    except (KeyError, ValueError, OverflowError):
        return None
