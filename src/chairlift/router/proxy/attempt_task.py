"""run_attempt: sends one attempt to its replica and reports what comes back as events."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from chairlift.router.attempts.actions import ResponseMode, SendAttempt
from chairlift.router.attempts.attempt_reader import AttemptReader
from chairlift.router.attempts.events import (
    AttemptBroken,
    CommentReceived,
    ConnectFailed,
    Event,
    FailureReason,
    RequestSent,
    ResponseReceived,
)
from chairlift.router.attempts.resume import append_members
from chairlift.router.proxy.upstream import Upstream, response_headers
from chairlift.web.error_responses import Header

log = logging.getLogger(__name__)

MAX_ERROR_BYTES = 1_048_576
"""Bytes of the body of a response with another status than 2xx; such a body is passed on whole."""

OK_STATUSES = range(200, 300)
EVENT_STREAM_TYPE = "text/event-stream"

STREAM_HEADERS = frozenset({b"content-type", b"cache-control", b"x-accel-buffering"})
"""Headers of a stream that a response which is not streamed does not have."""

RECONNECT_SECONDS = 2.0
"""Time limit of the second connection of an attempt, whose first one the replica had closed."""

LOST = (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError)
"""What aiohttp raises when a connection fails, is cut, or brings something else than HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """The client's request, as every attempt sends it.

    Attributes:
        method: the HTTP method.
        target: encoded path with its query.
        headers: the client's headers.
        body: the client's body; None for none.
        request_id: the id under which every replica gets the request.
        members: further members of the body, which is a JSON object then.
        is_repeatable: whether it may reach a replica twice.
        traceparent: context of the attempt's span, which replaces that of the client; "" passes that on.
    """

    method: str
    target: str
    headers: list[Header]
    body: bytes | None
    request_id: str
    members: Mapping[str, Any]
    is_repeatable: bool = True
    traceparent: str = ""


@dataclass(slots=True)
class AttemptResponse:
    """What is known of an attempt's response besides its events.

    Attributes:
        status: the status; 0 before the response.
        headers: the headers that the client gets.
        load_header: the replica's load report, "" for none.
        is_event_stream: whether it is a stream of events that the router can read.
        comment: text of the replica's last comment in the stream; b"" without one.
    """

    status: int = 0
    headers: Sequence[Header] = ()
    load_header: str = ""
    is_event_stream: bool = False
    comment: bytes = b""


class RunningAttempt:
    """One attempt, which a task of its own sends and reads."""

    def __init__(
        self, upstream: Upstream, request: UpstreamRequest, attempt: SendAttempt, response: AttemptResponse,
        report: Callable[[Sequence[Event]], None], wait_until_read: Callable[[int], "asyncio.Future[None] | None"],
    ) -> None:  # fmt: skip
        self._upstream, self._request, self._attempt, self._response = upstream, request, attempt, response
        self._report, self._wait_until_read = report, wait_until_read
        self._number = attempt.attempt
        self._is_sent = self._is_reused = False

    async def run(self) -> None:
        """Send the request, and report what becomes of it."""
        replica = self._attempt.replica_id
        try:
            await self._exchange()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnicodeError) as error:
            log.info("no connection to %s: %s", replica, error)
            self._report([ConnectFailed(self._number)])
        except LOST as error:
            log.info("the response of %s broke: %s: %s", replica, type(error).__name__, error)
            self._report([AttemptBroken(self._number, FailureReason.RESET)])

    async def _exchange(self) -> None:
        """Send the request and read its response.

        Servers close connections that were idle, and a request may meet such an end half-way. One that may be repeated
        is then sent again on a new connection; the others are never sent on a connection that was idle.
        """
        is_repeatable = self._request.is_repeatable
        try:
            await self._send(may_reuse=is_repeatable)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            # A new connection that ends is a fault of the replica, and no response that has begun is asked for again.
            if not self._is_reused or not is_repeatable or _has_received(error, self._response):
                raise
            log.info("%s had closed an idle connection: %s", self._attempt.replica_id, error)
            await self._send(may_reuse=False, connect_seconds=RECONNECT_SECONDS)

    async def _send(self, *, may_reuse: bool, connect_seconds: float | None = None) -> None:
        request, attempt, response = self._request, self._attempt, self._response
        body, members = request.body, {**request.members, **attempt.members}
        if body is not None and members:
            body = append_members(body, members)
        async with self._upstream.request(
            request.method, attempt.replica_id, request.target, self._headers(), body, self._on_connected,
            may_reuse=may_reuse, connect_seconds=connect_seconds,
        ) as answer:  # fmt: skip
            if answer.status < OK_STATUSES.start:  # 101, or no status of HTTP; 100, 102 and 103 are skipped
                raise aiohttp.ClientError(f"a response has the status {answer.status}")
            # Before the first event, whose handling reads them.
            response.status, response.headers = answer.status, response_headers(answer)
            response.load_header = answer.headers.get("x-chairlift-load", "")
            response.is_event_stream = _is_event_stream(answer)
            if answer.status in OK_STATUSES:
                self._report([ResponseReceived(self._number, answer.status)])
                await self._read(answer)
            else:
                await self._read_error(answer)

    def _headers(self) -> list[tuple[str, str]]:
        extra = {"x-request-id": self._request.request_id, "x-chairlift-router": "1"}
        if (timeout := self._attempt.timeout_seconds) is not None:
            extra["x-request-timeout-ms"] = str(max(1, int(timeout * 1000)))
        if self._attempt.mode is ResponseMode.PROGRESS:
            extra["x-chairlift-progress"] = "1"
        if self._request.traceparent:
            extra["traceparent"] = self._request.traceparent
        return self._upstream.request_headers(self._request.headers, extra)

    def _on_connected(self, is_reused: bool) -> None:
        self._is_reused = is_reused
        # The second connection of an attempt is not another request.
        if not self._is_sent:
            self._is_sent = True
            self._report([RequestSent(self._number)])

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        """Report the events of a body until its end."""
        mode = _mode_of(self._attempt.mode, answer)
        # The client gets one JSON body, though the replica sends a stream of progress events.
        if mode is ResponseMode.PROGRESS:
            self._response.headers = _whole_headers(self._response.headers)
        reader = AttemptReader(self._number, mode)
        content, report, wait_until_read = answer.content, self._report, self._wait_until_read
        num_unreported = num_comments = 0
        try:
            with _failing_when_closed(answer):
                while received := await content.readany():
                    num_unreported += len(received)
                    events = reader.push(received)
                    self._response.comment = reader.comment
                    has_comment, num_comments = reader.num_comments > num_comments, reader.num_comments
                    if not events:
                        if has_comment:
                            report([CommentReceived(self._number)])
                        continue  # the client has nothing to read, so it cannot be slow
                    report(events)
                    if (read := wait_until_read(num_unreported)) is not None:
                        await asyncio.shield(read)  # another attempt may wait for it, too
                    num_unreported = 0
        except LOST as error:
            log.info("a response was cut: %s: %s", type(error).__name__, error)
            report(reader.close(is_reset=True))
            return
        report(reader.close())

    async def _read_error(self, answer: aiohttp.ClientResponse) -> None:
        """Report a response with an error; only the body of a client's error is passed on, so others may be late."""
        # A full or faulty replica is followed by another one, so its error is reported before its body is read.
        is_passed = answer.status < 500 and answer.status != 429
        event = ResponseReceived(self._number, answer.status, retry_after_seconds(answer.headers, time.time()))
        if not is_passed:
            self._report([event])
        pieces, size = [], 0
        try:
            with _failing_when_closed(answer):
                while size <= MAX_ERROR_BYTES and (piece := await answer.content.readany()):
                    pieces.append(piece)
                    size += len(piece)
        except LOST:
            if is_passed:
                raise
        if is_passed and size > MAX_ERROR_BYTES:
            log.warning("an error of %s has more than %d bytes", self._attempt.replica_id, MAX_ERROR_BYTES)
        if is_passed:
            self._report([replace(event, body=b"".join(pieces)[:MAX_ERROR_BYTES])])


async def run_attempt(
    upstream: Upstream, request: UpstreamRequest, attempt: SendAttempt, response: AttemptResponse,
    report: Callable[[Sequence[Event]], None], wait_until_read: Callable[[int], "asyncio.Future[None] | None"],
) -> None:  # fmt: skip
    """Send an attempt; `report` gets its events in order, and `response` its head before them.

    `wait_until_read` gets the bytes of what was reported, and returns a future while the client is slow: the response
    is not read before it is done.
    """
    await RunningAttempt(upstream, request, attempt, response, report, wait_until_read).run()


@contextmanager
def _failing_when_closed(answer: aiohttp.ClientResponse) -> Iterator[None]:
    """Let reads of a body fail when its connection is closed; aiohttp never ends one behind a malformed chunk."""
    content, connection = answer.content, answer.connection

    def fail(_closed: object = None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed within a body"))

    if connection is None or connection.protocol is None:  # the body is complete
        yield
    elif (closed := connection.protocol.closed) is None:
        fail()
        yield
    else:
        closed.remove_done_callback(_retrieve)  # one for all responses of a connection
        closed.add_done_callback(_retrieve)
        closed.add_done_callback(fail)
        try:
            yield
        finally:
            closed.remove_done_callback(fail)


def _retrieve(closed: "asyncio.Future[None]") -> None:
    """Retrieve the error of a connection, which asyncio would log otherwise."""
    if not closed.cancelled():
        closed.exception()


def _has_received(error: aiohttp.ClientConnectionError, response: AttemptResponse) -> bool:
    """Return whether a byte of a response came before the error."""
    is_head_cut = isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
    return response.status != 0 or is_head_cut or isinstance(error, aiohttp.ClientConnectorError)


def _whole_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of the response at the end of a stream of progress events."""
    return [(b"content-type", b"application/json"), *(each for each in headers if each[0] not in STREAM_HEADERS)]


def _mode_of(mode: ResponseMode, answer: aiohttp.ClientResponse) -> ResponseMode:
    """Return how to read the response: a server that does not know the progress events sends the whole body."""
    if not _is_event_stream(answer):
        return ResponseMode.WHOLE
    return ResponseMode.BYTES if mode is ResponseMode.WHOLE else mode


def _is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    """Return whether the events of a response can be read; encoded bytes have none."""
    is_encoded = answer.headers.get("content-encoding", "identity").lower() != "identity"
    return answer.content_type == EVENT_STREAM_TYPE and not is_encoded


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until a replica takes requests again, by its headers; None where they do not say.

    `now` is seconds since 1970, for an HTTP date in a response without a date of its own.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    until = _timestamp(headers.get("retry-after", ""))
    if until is None:
        return None
    sent_at = _timestamp(headers.get("date", ""))
    return max(0.0, until - (now if sent_at is None else sent_at))


def _timestamp(date: str) -> float | None:
    """Return an HTTP date as seconds since 1970, None for anything else."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
