"""bounded_protocol: uvicorn's httptools protocol with limits on size and time of a request's header block.

idle ── first byte ──> head ── empty line ──> body ── its end ──> idle
 │ keep-alive            │ HeadLimits    │ rejected: responded to here, and the body is discarded
 ▼                       ▼
closed                  431, 408, or 400 for invalid HTTP; then closed
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from chairlift.core.errors import BodyTimeout, ChairliftError, HeadersTooLarge, MalformedRequest, MethodNotAllowed
from chairlift.web.access_log import AccessRecord, log_access
from chairlift.web.admission import Permit
from chairlift.web.body import Scope, all_headers, header
from chairlift.web.error_responses import Header, error_response_of
from chairlift.web.half_closed_connection import HalfClosedConnection
from chairlift.web.raw_error_responses import RawResponseCache, raw_error_response
from chairlift.web.request_id import request_id
from chairlift.web.request_info import request_info
from chairlift.web.request_start_throttle import StartThrottle

SMALL_BODY_BYTES = 65_536
"""Largest body of a request that is rejected early; larger ones, to be read or cut off, go to the application."""

NO_HTTP = "this is no HTTP/1.1 request"
REQUEST_LINE = re.compile(rb"[A-Z]{1,32} \S{1,8192} HTTP/1\.[01]\r?\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """Limits of a request's header block.

    Attributes:
        bytes: bytes of request line and headers together.
        lines: number of headers.
        seconds: from the first byte, or from the connection, to the empty line.
    """

    bytes: int = 65_536
    lines: int = 128
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that is rejected by its header block, without the application.

    Attributes:
        error: the error of the response.
        route: the route's path pattern.
        tenant: the client's tenant.
        headers: further headers of the response.
    """

    error: ChairliftError
    route: str
    tenant: str = ""
    headers: tuple[Header, ...] = ()


AcquirePermit = Callable[[], Permit | None]
"""Acquires a permit for a request that has arrived as a whole; returns None where the queue is full by now."""

EarlyCheck = Callable[[bytes, list[Header], tuple[str, int | None] | None], Rejection | AcquirePermit | None]
"""Checks a POST's target, headers and server address before the application.

Returns a Rejection, how to acquire a permit, or None."""


def bounded_protocol(
    limits: HeadLimits, write_timeout: float = 30.0, on_rejected: Callable[[AccessRecord], None] = lambda record: None,
    early_check: EarlyCheck | None = None,
) -> type[asyncio.Protocol]:  # fmt: skip
    """Return the protocol class for uvicorn's `http`.

    A client that reads nothing of a complete response for `write_timeout` is dropped. `on_rejected` receives the
    record of each request that is rejected here, without the application; `early_check` rejects at a small part of
    the application's cost. An admitted request has a permit in its scope, which the application must end, and starts
    through the start throttle. That holds for requests that arrive at once with their bodies; slow ones start at once.
    """
    attributes = {
        "limits": limits, "write_timeout": write_timeout, "on_rejected": staticmethod(on_rejected),
        "early_check": None if early_check is None else staticmethod(early_check), "start_throttle": StartThrottle(),
        "raw_responses": RawResponseCache(),
    }  # fmt: skip
    return type("BoundedProtocol", (_BoundedProtocol,), attributes)


class _BoundedProtocol(HttpToolsProtocol):
    """Handles one connection; responds to rejected requests itself, without the application."""

    limits = HeadLimits()
    write_timeout = 30.0
    on_rejected: Callable[[AccessRecord], None]
    early_check: EarlyCheck | None = None
    start_throttle: StartThrottle
    raw_responses: RawResponseCache

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._in_body = False
        self._was_rejected = self._closes_after_body = False
        self._acquire_permit: AcquirePermit | None = None
        self._deferred_start: Callable[[bool], None] | None = None
        self._error: ChairliftError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serving: RequestResponseCycle | None = None
        self._half_closed: HalfClosedConnection | None = None

    # -- uvicorn's protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a header block."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and notify the request that is served."""
        self._stop_timer()
        if self._half_closed is not None:
            self._half_closed.stop()
        self._notify_disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open, until its whole requests have their responses.

        A client of HTTP/1.0 without the beginning of a response is gone: proxies that speak it close only the whole
        connection, and no interim response can find out. TLS has no half-closed connections.
        """
        serving = self._serving
        if serving is None or self.cycle.more_body or self._error is not None:
            return False
        if self.scheme == "https" or (serving.scope["http_version"] != "1.1" and not serving.response_started):
            return False
        self.cycle.keep_alive = False
        self._half_closed = HalfClosedConnection(self.transport, self.loop, self._may_continue)
        return True

    def _may_continue(self) -> bool:
        """Return whether an interim response may be sent: a request is served whose response has not begun."""
        serving = self._serving
        return serving is not None and not serving.response_started and serving.scope["http_version"] == "1.1"

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; close the connection for too large or invalid input."""
        if self._error is not None:
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        if self._is_idle:
            self._start_timer()
        try:
            self._feed(data)
        except httptools.HttpParserInvalidMethodError:
            self._reject_and_close(_unknown_method(data))
            return
        except httptools.HttpParserError:
            self._reject_and_close(self._error or MalformedRequest(NO_HTTP))
            return
        self._begin(is_whole=False)
        if self._head_bytes > self.limits.bytes:
            self._reject_and_close(self._too_large(f"{self._head_bytes} bytes or more", f"{self.limits.bytes}"))

    def on_response_complete(self) -> None:
        """Continue with pipelined requests, and watch that the client reads this response."""
        self._serving = None
        super().on_response_complete()
        self._watch_write_buffer()

    def _watch_write_buffer(self) -> None:
        if (unread := self.transport.get_write_buffer_size()) > 0:
            self.loop.call_later(self.write_timeout, self._check_reader, unread)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        start = partial(super()._start_asgi_task, cycle, app)
        acquire_permit, self._acquire_permit = self._acquire_permit, None
        if acquire_permit is None:
            start()
            return

        def begin(is_whole: bool) -> None:
            if is_whole and (permit := acquire_permit()) is not None:
                request_info(cast("Scope", cycle.scope)).permit = permit
                self.start_throttle.enter(start)
            else:
                start()

        self._deferred_start = begin

    def _begin(self, *, is_whole: bool) -> None:
        """Start the request whose start is deferred, if any."""
        begin, self._deferred_start = self._deferred_start, None
        if begin is not None:
            begin(is_whole)

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, up to the limit; ignore trailers behind a body, which are not checked."""
        if self._in_body:
            return
        if len(self.headers) >= self.limits.lines:
            self._fail(self._too_large(f"more than {self.limits.lines} lines", f"{self.limits.lines}"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, unless it switches to another protocol."""
        size = len(self._request_line()) + sum(len(name) + len(value) + 4 for name, value in self.headers) + 2
        if size > self.limits.bytes:
            self._fail(self._too_large(f"{size} bytes", f"{self.limits.bytes}"))
        if self._get_upgrade() == b"websocket":
            self._fail(MalformedRequest("WebSockets are not supported"))
        if self.parser.get_method() == b"CONNECT":
            self._fail(MalformedRequest("CONNECT is not supported"))
        if self.parser.should_upgrade():
            return  # the parser stops behind this head, and _feed goes on
        self._head_bytes = 0
        if self._closes_after_body or self._reject_early():  # requests behind a closing response are ignored
            self._in_body = self._was_rejected = True  # the header timer bounds the body, too
            return
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.scope["state"]["abort"] = self.transport.abort
        super().on_headers_complete()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body; the application limits its size."""
        self._head_bytes = 0
        if self._was_rejected:
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body; another header block follows."""
        if self.parser.should_upgrade():
            return
        self._in_body = False
        self._head_bytes = 0
        if self._was_rejected:
            self._was_rejected = False
            if self._closes_after_body:
                self.transport.close()
                return
        else:
            super().on_message_complete()
            self._begin(is_whole=True)
            if not self.cycle.response_complete:
                return
        # The response did not wait for the body, so the connection is idle from now on.
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # -- upgrades --------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Parse; serve a request that offers a protocol upgrade without the upgrade.

        The parser reads no body behind such a header block, so a new parser gets the block without the offer.
        """
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as stop:
                rest = rest[stop.args[0] :]
                head = self._plain_head()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)

    def _plain_head(self) -> bytes:
        """Return the last header block without its upgrade headers."""
        lines = [self._request_line()]
        for name, value in self.headers:
            if name == b"connection":
                words = [word for word in value.split(b",") if word.strip().lower() != b"upgrade"]
                lines.append(b"connection: %s\r\n" % b",".join(words))
            elif name != b"upgrade":
                lines.append(b"%s: %s\r\n" % (name, value))
        return b"".join([*lines, b"\r\n"])

    def _request_line(self) -> bytes:
        return b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())

    # -- rejections ------------------------------------------------------------------------------------------------

    def _reject_early(self) -> bool:
        """Respond here if the early check rejects the request and no earlier one is open."""
        check, scope = self.early_check, cast("Scope", self.scope)
        if check is None or self._serving is not None or self.pipeline or self.transport.is_closing():
            return False
        if self.flow.write_paused:  # the client does not read: the application's sends wait for it
            return False
        if self.parser.get_method() != b"POST" or self.expect_100_continue or not _has_small_body(scope):
            return False
        verdict = check(self.url, self.headers, self.server)
        if not isinstance(verdict, Rejection):
            self._acquire_permit = verdict
            return False
        rejected_id = request_id(header(scope, b"x-request-id"))
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() == "1.1"
        common = self.server_state.default_headers
        if verdict.headers:
            common = [*common, *verdict.headers]
        self.transport.write(
            self.raw_responses.write(verdict.error, rejected_id, common, keep_alive=keep_alive, path=verdict.route)
        )
        status = error_response_of(verdict.error).status
        record = AccessRecord(rejected_id, "POST", verdict.route, status, 0.0, verdict.error.code, verdict.tenant)
        self.on_rejected(record)
        log_access(record, verdict.route)
        self._watch_write_buffer()
        self._closes_after_body = (
            not keep_alive
        )  # after the body: bytes for a closed socket would reset it and lose the response
        return True

    def _check_reader(self, unread: int) -> None:
        """Abort the connection if the client has read nothing since the last check; close() would wait."""
        remaining = self.transport.get_write_buffer_size()
        if remaining >= unread:
            self.transport.abort()
        elif remaining:
            self.loop.call_later(self.write_timeout, self._check_reader, remaining)

    @property
    def _is_idle(self) -> bool:
        return self._timer is None and (self.cycle is None or self.cycle.response_complete)

    def _fail(self, error: ChairliftError) -> NoReturn:
        """Stop the parser; data_received rejects the request with this error."""
        self._error = error
        raise error

    def _too_large(self, came: str, limit: str) -> HeadersTooLarge:
        return HeadersTooLarge(f"the head of the request has {came}, the limit is {limit}")

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.seconds, self._on_header_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_header_timeout(self) -> None:
        """Close a connection whose header block is late; respond only if a request has started."""
        self._timer = None
        if self._head_bytes:
            self._reject_and_close(
                BodyTimeout(f"the head of the request did not come within {self.limits.seconds:g} s")
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _reject_and_close(self, error: ChairliftError) -> None:
        """Reject and close; send no response if the client would take it for an earlier request's."""
        self._begin(is_whole=False)
        self._error = error.with_traceback(None)  # a traceback would refer to this connection, a cycle
        self._stop_timer()
        serving = self._serving
        if serving is None:
            has_place = not self._in_body
        else:
            has_place = self._in_body and serving is self.cycle and not serving.response_started
        self._notify_disconnect()
        if has_place and not self.transport.is_closing():
            rejected_id = "" if serving is None else request_info(cast("Scope", serving.scope)).request_id
            rejected_id = rejected_id or request_id(None)
            self.transport.write(
                raw_error_response(error, rejected_id, self.server_state.default_headers, keep_alive=False)
            )
            if serving is None:  # else the application logs the request
                record = AccessRecord(rejected_id, "-", "", error_response_of(error).status, 0.0, error.code, "")
                self.on_rejected(record)
                log_access(record, "-")
        self.transport.close()

    def _notify_disconnect(self) -> None:
        """Notify the request that is served; uvicorn notifies only the newest, which may be queued."""
        if self._serving is not None:
            self._serving.disconnected = True
            self._serving.message_event.set()


def _has_small_body(scope: Scope) -> bool:
    lengths = all_headers(scope, b"content-length")
    return len(lengths) == 1 and lengths[0].isdigit() and len(lengths[0]) < 6 and int(lengths[0]) <= SMALL_BODY_BYTES


def _unknown_method(data: bytes) -> ChairliftError:
    """Return the error for a method unknown to the parser; the rest may still be valid HTTP."""
    if REQUEST_LINE.match(data):
        return MethodNotAllowed("the method is not supported", allow="GET, HEAD, POST, OPTIONS")
    return MalformedRequest(NO_HTTP)
