"""BodyStream: the body of a request, read piece by piece, in the shape that aiohttp's multipart reader reads."""

import asyncio

from chairlift.core.errors import BodyTimeout, BodyTooLarge, MalformedRequest
from chairlift.web.body import ClientGone, Receive

TIMED_BYTES = 1_000_000
"""Bytes that must arrive within the timeout of a body, however long the body is."""

MAX_LINE_BYTES = 16_384
"""Longest line of the headers within a multipart body."""


class BodyStream:
    """Reads a body no faster than its reader; nothing of it is kept."""

    def __init__(self, receive: Receive, *, max_bytes: int, seconds: float) -> None:
        """Prepare to read a body of at most `max_bytes`, of which TIMED_BYTES arrive within `seconds` each."""
        self._receive, self._max_bytes, self._seconds = receive, max_bytes, seconds
        self._buffer = b""
        self._num_bytes = self._num_timed = 0
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._is_complete = False

    async def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, b"" at the end. Raises BodyTooLarge, BodyTimeout, ClientGone."""
        if not self._buffer:
            await self._fill()
        size = len(self._buffer) if size < 0 else size
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """Return a line with its end, or what is left. Raises as read() does, and MalformedRequest for a long line."""
        limit = MAX_LINE_BYTES if max_line_length is None else min(max_line_length, MAX_LINE_BYTES)
        while (end := self._buffer.find(b"\n", 0, limit + 1)) < 0:
            if len(self._buffer) > limit:
                raise MalformedRequest(f"the multipart body has a line of more than {limit} bytes in its headers")
            if not await self._fill():
                end = len(self._buffer)
                break
        line, self._buffer = self._buffer[: end + 1], self._buffer[end + 1 :]
        return line

    def unread_data(self, data: bytes) -> None:
        """Put bytes back, which are read next."""
        self._buffer = data + self._buffer

    def at_eof(self) -> bool:
        """Return whether everything was read."""
        return self._is_complete and not self._buffer

    async def _fill(self) -> bool:
        """Receive the next piece; returns False at the end of the body."""
        while not self._is_complete:
            try:
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
            except TimeoutError:
                raise BodyTimeout(
                    f"a megabyte of the body, or its end, did not arrive within {self._seconds:g} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientGone("the client disconnected before its request was complete")
            data = message.get("body", b"")
            self._is_complete = not message.get("more_body")
            self._count(len(data))
            if data:
                self._buffer += data
                return True
        return False

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._num_timed += num_bytes
        if self._num_bytes > self._max_bytes:
            raise BodyTooLarge(f"the body has {self._num_bytes} bytes or more, the limit is {self._max_bytes}")
        if self._num_timed >= TIMED_BYTES:
            self._num_timed = 0
            self._deadline = asyncio.get_running_loop().time() + self._seconds
