"""ResponseRecorder: records token times and outcome of a streamed response with little work per chunk.

Chunks are not parsed as JSON. Regular expressions look in each for token ids (`return_token_ids`), or else for a text
that is not empty; quotation marks inside a JSON string are escaped, so that no text can match. Usage and errors are
parsed, because a stream has at most one of each.
"""

import json
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

from chairlift.bench.server.http_client import ExchangeEnd, ExchangeEndKind, Headers
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.protocol.sse import EventReader, ServerSentEvent

TOKEN_IDS = re.compile(r'"token_ids"\s*:\s*\[([^\]]*)\]')
TEXT = re.compile(r'"(?:text|content|reasoning_content|reasoning|arguments)"\s*:\s*"(?!")')
ERROR = re.compile(r'"error"\s*:\s*\{|"object"\s*:\s*"error"')
USAGE = re.compile(r'"usage"\s*:\s*\{')
MAX_ERROR_BYTES = 65_536
REJECTION_STATUSES = (429, 503)


class ResponseRecorder:
    """Records the response to one request; `started_at` is the phase's start by time.monotonic()."""

    def __init__(self, record: HttpRequestRecord, started_at: float) -> None:
        self._record = record
        self._started_at = started_at
        self._reader = EventReader()
        self._is_done = self._has_error = False
        self._body = bytearray()

    def head(self, status: int, headers: Headers) -> None:
        """See ResponseHandler."""
        self._record.status = status
        headers_by_name = dict(headers)
        if headers_by_name.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ValueError("the response is compressed, though the request accepts only identity")
        self._record.retry_after = _retry_after(headers_by_name)

    def body(self, chunk: bytes, now: float) -> None:
        """See ResponseHandler."""
        if self._record.status == 200:
            for event in self._reader.push(chunk):
                self._handle_event(event, now)
        elif len(self._body) < MAX_ERROR_BYTES:
            self._body += chunk

    def _handle_event(self, event: ServerSentEvent, now: float) -> None:
        data, record = event.data, self._record
        if data == "[DONE]":
            self._is_done = True
            return
        if event.event == "error" or ERROR.search(data):
            self._has_error = True
            record.code = _code(data, "error")
            return
        if match := TOKEN_IDS.search(data):
            record.has_ids = True
            weight = match[1].count(",") + 1 if match[1].strip() else 0
        else:
            weight = int(not record.has_ids and TEXT.search(data) is not None)
        if weight:
            record.arrivals.append(now - self._started_at)
            record.weights.append(weight)
        if USAGE.search(data):
            _note_usage(data, record)

    def end(self, ended: ExchangeEnd) -> None:
        """Record the end of the exchange and the outcome."""
        record = self._record
        record.ended, record.why = ended.at - self._started_at, ended.why
        record.outcome = self._outcome(ended.how)
        if record.outcome in (Outcome.REFUSED, Outcome.BAD_STATUS):
            record.code = _code(self._body.decode("utf-8", "replace"), f"http_{record.status}")
        elif record.outcome is not Outcome.OK and not record.code:
            record.code = record.outcome.value

    def error_text(self) -> str:
        """Return the message of an error response, with its status."""
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
        return Outcome.REFUSED if self._record.status in REJECTION_STATUSES else Outcome.BAD_STATUS


def error_message_of(body: bytes) -> str:
    """Return the message of an error's body: OpenAI's `message` field, or the first 200 characters."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body.decode("utf-8", "replace")[:200].strip() or "empty response"


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


def _retry_after(headers_by_name: dict[bytes, bytes]) -> float | None:
    for name, scale in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        try:
            return float(headers_by_name[name]) / scale
        except (KeyError, ValueError):
            continue
    try:  # Retry-After may also be a date
        when = parsedate_to_datetime(headers_by_name[b"retry-after"].decode("latin-1"))
        return max(0.0, when.timestamp() - time.time())
    except (KeyError, ValueError, OverflowError):
        return None
