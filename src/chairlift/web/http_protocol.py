"""HTTP on a connection: uvicorn's protocol over httptools, with bounds on the head of a request and on its time.

idle ── first byte ──> head ── empty line ──> body ── its end ──> idle
 │ keep-alive            │ head_bytes,   │ turned away: answered here, and the body is thrown away
 ▼                       ▼ head_lines, head_seconds
closed                  431, 408, or 400 for what is no HTTP; then closed
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
from chairlift.web.access_log import Seen, tell
from chairlift.web.admission import Permit
from chairlift.web.body import Scope, all_headers, header
from chairlift.web.error_responses import Header, answer_of
from chairlift.web.raw_responses import Letters, raw_answer
from chairlift.web.request_id import request_id
from chairlift.web.start_throttle import Turnstile

SMALL_BODY_BYTES = 65_536
"""Of a request that is turned away: larger ones, which must be read or cut off, are the application's."""

NO_HTTP = "this is no HTTP/1.1 request"
REQUEST_LINE = re.compile(rb"[A-Z]{1,32} \S{1,8192} HTTP/1\.[01]\r?\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """Bounds of what comes before a body.

    Attributes:
        bytes: of request line and headers together.
        lines: headers.
        seconds: from the first byte, or from the connection, to the empty line.
    """

    bytes: int = 65_536
    lines: int = 128
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that needs no application, because its head is enough to refuse it.

    Attributes:
        error: that it is answered with.
        route: the route's own path.
        tenant: who asks.
    """

    error: ChairliftError
    route: str
    tenant: str = ""


Admit = Callable[[], Permit | None]
"""Gives a permit to a request that is there as a whole; None where there is no room any more."""

Gate = Callable[[bytes, list[Header]], TurnedAway | Admit | None]
"""Takes a POST's target and headers before the application: turns it away, says who lets it in, or leaves it alone."""


def bounded_protocol(
    limits: HeadLimits, write_seconds: float = 30.0, seen: Callable[[Seen], None] = lambda seen: None,
    gate: Gate | None = None,
) -> type[asyncio.Protocol]:  # fmt: skip
    """Return the protocol class for uvicorn's `http`.

    A client that takes nothing of an answer that is complete for `write_seconds` is dropped. `seen` hears of what is
    refused here, which the application never sees; so does whom `gate` turns away, at a small part of the cost. Who is
    let in has a permit in its scope, which the application must end, and begins in its turn. That is for those who come
    at once with their bodies: of who is slow nobody waits at the gate.
    """
    known = {
        "limits": limits, "write_seconds": write_seconds, "seen": staticmethod(seen),
        "gate": None if gate is None else staticmethod(gate), "turnstile": Turnstile(), "letters": Letters(),
    }  # fmt: skip
    return type("BoundedProtocol", (_BoundedProtocol,), known)


class _BoundedProtocol(HttpToolsProtocol):
    """One connection. What it refuses is answered here, without the application."""

    limits = HeadLimits()
    write_seconds = 30.0
    seen: Callable[[Seen], None]
    gate: Gate | None = None
    turnstile: Turnstile
    letters: Letters

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._in_body = False
        self._was_turned_away = self._closes = False
        self._admit: Admit | None = None
        self._held: Callable[[bool], None] | None = None
        self._error: ChairliftError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serving: RequestResponseCycle | None = None

    # -- uvicorn's protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer, and tell who is served."""
        self._stop_timer()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; what is too large, or no HTTP, ends the connection."""
        if self._error is not None:
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        if self._is_idle:
            self._start_timer()
        try:
            self._feed(data)
        except httptools.HttpParserInvalidMethodError:
            self._refuse(_unknown_method(data))
            return
        except httptools.HttpParserError:
            self._refuse(self._error or MalformedRequest(NO_HTTP))
            return
        self._begin(is_whole=False)
        if self._head_bytes > self.limits.bytes:
            self._refuse(self._too_large(f"{self._head_bytes} bytes or more", f"{self.limits.bytes}"))

    def on_response_complete(self) -> None:
        """Go on with what is queued behind an answer, and see that this one is taken."""
        self._serving = None
        super().on_response_complete()
        self._see_it_taken()

    def _see_it_taken(self) -> None:
        if (unread := self.transport.get_write_buffer_size()) > 0:
            self.loop.call_later(self.write_seconds, self._look_at_reader, unread)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        start = partial(super()._start_asgi_task, cycle, app)
        admit, self._admit = self._admit, None
        if admit is None:
            start()
            return

        def begin(is_whole: bool) -> None:
            if is_whole and (permit := admit()) is not None:
                cycle.scope["permit"] = permit  # type: ignore[typeddict-unknown-key]
                self.turnstile.enter(start)
            else:
                start()

        self._held = begin

    def _begin(self, *, is_whole: bool) -> None:
        """Begin with the request that is held at the gate, if there is one."""
        begin, self._held = self._held, None
        if begin is not None:
            begin(is_whole)

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, up to so many; behind a body come no headers that anybody would have checked."""
        if self._in_body:
            return
        if len(self.headers) >= self.limits.lines:
            self._fail(self._too_large(f"more than {self.limits.lines} lines", f"{self.limits.lines}"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request, unless it wants to be something else."""
        size = len(self._request_line()) + sum(len(name) + len(value) + 4 for name, value in self.headers) + 2
        if size > self.limits.bytes:
            self._fail(self._too_large(f"{size} bytes", f"{self.limits.bytes}"))
        if self._get_upgrade() == b"websocket":
            self._fail(MalformedRequest("there are no WebSockets here"))
        if self.parser.get_method() == b"CONNECT":
            self._fail(MalformedRequest("there are no tunnels here"))
        if self.parser.should_upgrade():
            return  # the parser stops behind this head, and _feed goes on
        self._head_bytes = 0
        if self._closes or self._turns_away():  # nothing behind an answer that ends the connection is heard
            self._in_body = self._was_turned_away = True  # the head's time bounds the body's, too
            return
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.scope["state"]["abort"] = self.transport.abort
        super().on_headers_complete()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; how much of it there may be is not known here."""
        self._head_bytes = 0
        if self._was_turned_away:
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body; what follows is another head."""
        if self.parser.should_upgrade():
            return
        self._in_body = False
        self._head_bytes = 0
        if self._was_turned_away:
            self._was_turned_away = False
            if self._closes:
                self.transport.close()
                return
        else:
            super().on_message_complete()
            self._begin(is_whole=True)
            if not self.cycle.response_complete:
                return
        # It was answered without its body, and the connection is idle from now on.
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # -- upgrades --------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Parse; nobody has to change to another protocol, and who wishes it is served without.

        The parser takes nothing behind a head with such a wish for a body, so another one gets that head without it.
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
        """Return the head that was read last, without its wish for another protocol."""
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

    # -- refusals --------------------------------------------------------------------------------------------------

    def _turns_away(self) -> bool:
        """Answer a request here if the gate says so, and nobody is before it on this connection."""
        gate, scope = self.gate, cast("Scope", self.scope)
        if gate is None or self._serving is not None or self.pipeline or self.transport.is_closing():
            return False
        if self.flow.write_paused:  # the client takes nothing: what the application sends waits for it
            return False
        if self.parser.get_method() != b"POST" or self.expect_100_continue or not _has_small_body(scope):
            return False
        away = gate(self.url, self.headers)
        if not isinstance(away, TurnedAway):
            self._admit = away
            return False
        given = request_id(header(scope, b"x-request-id"))
        stays = self.parser.should_keep_alive() and self.parser.get_http_version() == "1.1"
        self.transport.write(self.letters.write(away.error, given, self.server_state.default_headers, stays=stays))
        status = answer_of(away.error).status
        seen = Seen(given, "POST", away.route, status, 0.0, away.error.code, away.tenant)
        self.seen(seen)
        tell(seen, away.route)
        self._see_it_taken()
        self._closes = not stays  # with the body: what comes for a socket that is closed resets it, answer and all
        return True

    def _look_at_reader(self, unread: int) -> None:
        """Drop a client that has taken nothing since the last look; closing would wait for it."""
        left = self.transport.get_write_buffer_size()
        if left >= unread:
            self.transport.abort()
        elif left:
            self.loop.call_later(self.write_seconds, self._look_at_reader, left)

    @property
    def _is_idle(self) -> bool:
        return self._timer is None and (self.cycle is None or self.cycle.response_complete)

    def _fail(self, error: ChairliftError) -> NoReturn:
        """Stop the parser; data_received refuses with this."""
        self._error = error
        raise error

    def _too_large(self, came: str, limit: str) -> HeadersTooLarge:
        return HeadersTooLarge(f"the head of the request has {came}, the limit is {limit}")

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """End a connection whose head does not come; one that never began gets no answer."""
        self._timer = None
        if self._head_bytes:
            self._refuse(BodyTimeout(f"the head of the request did not come within {self.limits.seconds:g} s"))
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ChairliftError) -> None:
        """Answer and close; without an answer where it would be taken for that of an earlier request."""
        self._begin(is_whole=False)
        self._error = error.with_traceback(None)  # it has frames with this connection, which would have it
        self._stop_timer()
        serving = self._serving
        if serving is None:
            has_place = not self._in_body
        else:
            has_place = self._in_body and serving is self.cycle and not serving.response_started
        self._leave()
        if has_place and not self.transport.is_closing():
            given = "" if serving is None else str(serving.scope.get("request_id", ""))
            given = given or request_id(None)
            self.transport.write(raw_answer(error, given, self.server_state.default_headers, stays=False))
            if serving is None:  # else it is a request that the application tells of
                seen = Seen(given, "-", "", answer_of(error).status, 0.0, error.code, "")
                self.seen(seen)
                tell(seen, "-")
        self.transport.close()

    def _leave(self) -> None:
        """Tell the request that is served that nobody waits for it; uvicorn tells the newest, which may be queued."""
        if self._serving is not None:
            self._serving.disconnected = True
            self._serving.message_event.set()


def _has_small_body(scope: Scope) -> bool:
    told = all_headers(scope, b"content-length")
    return len(told) == 1 and told[0].isdigit() and len(told[0]) < 6 and int(told[0]) <= SMALL_BODY_BYTES


def _unknown_method(data: bytes) -> ChairliftError:
    """Return what a request gets whose method the parser does not know: it may be HTTP all the same."""
    if REQUEST_LINE.match(data):
        return MethodNotAllowed("there is no such method here", allow="GET, HEAD, POST, OPTIONS")
    return MalformedRequest(NO_HTTP)
