"""BodyStream: the body of a request, read piece by piece, in the shape that aiohttp's multipart reader reads."""

import asyncio

from chairlift.core.errors import BodyTimeout, BodyTooLarge, MalformedRequest
from chairlift.web.body import ClientGone, Receive

TIMED_BYTES = 1_000_000
"""Bytes that must arrive within the timeout of a body, however long the body is."""

MAX_LINE_BYTES = 16_384
"""Longest line of the headers within a multipart body."""

MAX_LINES = 1024
"""Lines of the boundaries and headers of a multipart body, at most, and of what comes before the first boundary."""


class BodyStream:
    """Reads a body no faster than its reader; nothing of it is kept."""

    def __init__(self, receive: Receive, *, max_bytes: int, max_line_bytes: int, seconds: float) -> None:
        """Prepare to read a body of at most `max_bytes`, of which TIMED_BYTES arrive within `seconds` each.

        `max_line_bytes`: bytes that are read as lines, at most, of all lines together.
        """
        self._receive, self._max_bytes, self._seconds = receive, max_bytes, seconds
        self._max_line_bytes = max_line_bytes
        self._buffer, self._start = b"", 0
        self._num_bytes = self._num_timed = self._num_lines = self._num_line_bytes = 0
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._is_complete = False

    async def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, b"" at the end. Raises BodyTooLarge, BodyTimeout, ClientGone."""
        if self._num_buffered == 0:
            await self._fill()
        return self._take(self._num_buffered if size < 0 else size)

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """Return a line with its end, or what is left.

        Raises as read() does, and MalformedRequest for a long line and for many.
        """
        limit = MAX_LINE_BYTES if max_line_length is None else min(max_line_length, MAX_LINE_BYTES)
        while (end := self._buffer.find(b"\n", self._start, self._start + limit + 1)) < 0:
            if self._num_buffered > limit:
                raise MalformedRequest(f"the multipart body has a line of more than {limit} bytes in its headers")
            if not await self._fill():
                end = len(self._buffer)
                break
        line = self._take(end + 1 - self._start)
        self._count_line(len(line))
        return line

    def unread_data(self, data: bytes) -> None:
        """Put bytes back, which are read next."""
        self._buffer, self._start = data + self._rest(), 0

    def at_eof(self) -> bool:
        """Return whether everything was read."""
        return self._is_complete and self._num_buffered == 0

    @property
    def _num_buffered(self) -> int:
        return len(self._buffer) - self._start

    def _rest(self) -> bytes:
        return self._buffer[self._start :]

    def _take(self, size: int) -> bytes:
        """Return up to `size` bytes of the buffer; those that stay are not copied."""
        end = self._start + size
        data, self._start = self._buffer[self._start : end], min(end, len(self._buffer))
        return data

    def _count_line(self, num_bytes: int) -> None:
        self._num_lines += 1
        self._num_line_bytes += num_bytes
        if self._num_lines > MAX_LINES:
            raise MalformedRequest(f"the form has more than {MAX_LINES} lines besides its file, which is the limit")
        if self._num_line_bytes > self._max_line_bytes:
            raise MalformedRequest(
                f"the form has more than {self._max_line_bytes} bytes besides its file, which is the limit"
            )

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
                self._buffer, self._start = (self._rest() + data if self._num_buffered else data), 0
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
