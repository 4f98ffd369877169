"""ClientConnection: a keep-alive HTTP connection of the load generator, which counts events and parses little else."""

import asyncio
import re
from collections.abc import Callable
from typing import cast

import orjson

from router_overhead.scripted_responses import MODEL

EVENT_MARK = b"data: "
END_MARK = b"0\r\n\r\n"
"""End of a chunked body. An event ends with two line feeds, so that no other chunk ends like this."""

NUM_TAIL_BYTES = len(EVENT_MARK) - 1
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
PROMPT = " Describe in a few sentences what a chair lift is, how it starts and stops, and how many people it carries."


class BadResponse(Exception):
    """A response is not complete, or not one to a request of a measurement."""


def request(number: int, num_tokens: int, *, is_streamed: bool) -> bytes:
    """Return a chat request whose prompt begins with its number."""
    fields = {
        "model": MODEL, "messages": [{"role": "user", "content": f"{number}{PROMPT}"}], "max_tokens": num_tokens,
        "temperature": 0, "stream": is_streamed,
    }  # fmt: skip
    body = orjson.dumps(fields)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class ClientConnection(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, on_events: Callable[[int, int], None]) -> None:
        """Create a protocol; `on_events` gets a request's number and how many events of it were received."""
        self._on_events = on_events
        self._number = 0
        self._has_head = False
        self._tail = b""
        self._num_body_bytes_left: int | None = None
        self._ended: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int, on_events: Callable[[int, int], None]) -> "ClientConnection":
        """Connect to a port of this machine."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(on_events), "127.0.0.1", port)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether the connection takes another request."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, number: int, message: bytes) -> None:
        """Send a request and wait for the end of its response. Raises BadResponse."""
        assert self._transport is not None, "it is connected"
        assert self._ended is None, "a connection has one request at a time"
        self._number, self._has_head, self._tail = number, False, b""
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        try:
            await self._ended
        finally:
            self._ended = None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open request."""
        self._transport = None
        self._end("the connection was closed before the end of the response")

    def data_received(self, data: bytes) -> None:
        """Count the events in received data."""
        if not self._has_head:
            head, separator, data = (self._tail + data).partition(b"\r\n\r\n")
            if not separator:
                self._tail = head
                return
            self._read_head(head)
        num_bytes = len(data)
        data = self._tail + data
        self._tail = data[-NUM_TAIL_BYTES:]
        if num_events := data.count(EVENT_MARK):
            self._on_events(self._number, num_events)
        if self._num_body_bytes_left is None:
            if data.endswith(END_MARK):
                self._end()
            return
        self._num_body_bytes_left -= num_bytes
        if self._num_body_bytes_left <= 0:
            self._end()

    def _read_head(self, head: bytes) -> None:
        self._has_head, self._tail = True, b""
        length = CONTENT_LENGTH.search(head)
        self._num_body_bytes_left = int(length[1]) if length else None
        status = head.split(b" ", 2)[1]
        if status != b"200":
            self._end(f"the response has status {status.decode()}, expected 200")

    def _end(self, reason: str = "") -> None:
        if self._ended is not None and not self._ended.done():
            if reason:
                self._ended.set_exception(BadResponse(reason))
            else:
                self._ended.set_result(None)
