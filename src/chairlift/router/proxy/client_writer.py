"""ClientWriter: sends one client its response, whose head follows from the attempt that it comes from."""

from collections.abc import Sequence
from http import HTTPStatus

from chairlift.web.body import Send
from chairlift.web.error_responses import Header
from chairlift.web.stream_keep_alive import StreamKeepAlive

WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
"""Statuses of responses that have no body, and so no length."""


class ClientWriter:
    """Sends the pieces of a response; nothing before the first one, so that an early error has its own status."""

    def __init__(
        self, send: Send, headers: Sequence[Header] = (), *, has_body: bool = True,
        stream: StreamKeepAlive | None = None,
    ) -> None:  # fmt: skip
        """Write to `send`; every response has `headers`, which may be extended before it starts.

        `stream` is the keep-alive whose `send` it is, which may begin the response.
        Without `has_body` it responds to HEAD: the length is that of the replica's headers, if they have one.
        """
        self._send = send
        self._has_body = has_body
        self._headers = headers
        self._stream = stream
        self._has_started = False

    @property
    def has_started(self) -> bool:
        """Whether the client has received a byte, which may be one of a comment."""
        return self._has_started or (self._stream is not None and self._stream.has_started)

    def add_headers(self, headers: Sequence[Header]) -> None:
        """Add headers to the response, which has not started."""
        assert not self.has_started, "the head was sent"
        self._headers = (*self._headers, *headers)

    async def write(self, payload: bytes, status: int, headers: Sequence[Header]) -> None:
        """Send a piece; the first one follows a head with this status and these headers."""
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": payload, "more_body": True})

    async def end(self, payload: bytes, status: int, headers: Sequence[Header]) -> None:
        """Send the last piece, which may be the only one: then the head has its length."""
        if self.has_started:
            await self._send({"type": "http.response.body", "body": payload, "more_body": False})
            return
        self._has_started = True
        head = [*headers, *self._headers]
        if self._has_body and status not in WITHOUT_BODY:
            head.append((b"content-length", b"%d" % len(payload)))
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": payload, "more_body": False})

    async def _start(self, status: int, headers: Sequence[Header]) -> None:
        if not self.has_started:
            self._has_started = True
            head = [*headers, *self._headers]
            await self._send({"type": "http.response.start", "status": status, "headers": head})
