"""HalfClosedConnection: finds out whether a client that has closed its sending direction still reads.

A client that closes only its sending direction (RFC 9112, section 9.6) waits for its response. One that is gone looks
the same at first: its system answers what it is sent with a reset, which the event loop notices only at the write
after that, because it no longer reads. So the socket is asked for the error.
"""

import asyncio
import socket
from collections.abc import Callable

PROBE_SECONDS = 0.25
"""Seconds between two looks at the socket's error, and so those for which a request of a lost client goes on."""

CONTINUE_SECONDS = 10.0
"""Seconds between two interim responses: a client may leave after the first."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Interim response, which clients of HTTP/1.1 skip (RFC 9110, section 15.2); a system without the client resets it."""


class HalfClosedConnection:
    """Watches the connection of a client that sends nothing any more, until it is closed; aborts it after a reset."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, may_continue: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Watch; `may_continue` says whether an interim response may be sent: no other one has begun."""
        self._transport, self._loop, self._may_continue = transport, loop, may_continue
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._next_continue = 0.0
        self._timer: asyncio.Handle = loop.call_soon(self._check)

    def stop(self) -> None:
        """Stop watching: the connection is closed."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._transport.is_closing():
            return
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        if (now := self._loop.time()) >= self._next_continue and self._may_continue():
            self._transport.write(CONTINUE)
            self._next_continue = now + CONTINUE_SECONDS
        self._timer = self._loop.call_later(PROBE_SECONDS, self._check)
