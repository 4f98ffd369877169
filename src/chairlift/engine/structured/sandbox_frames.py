"""write_frame, receive_frame, read_frame: messages between an engine, its sandbox process and the fork of that one.

A frame is its length in four bytes and a msgpack message.
"""

import os
import select
from typing import IO, Protocol

LENGTH_BYTES = 4
READ_BYTES = 1 << 16

CHECK_MS = 50
"""How often a missing frame is compared with its limit."""

MAX_FRAME_BYTES = 1 << 24
"""Longest frame that is received; a verdict has some thousand bytes."""

END_OF_STREAM = b""  # returned instead of a frame, which is never empty


class FrameLimit(Protocol):
    """How long a frame is waited for."""

    def is_exceeded(self) -> bool:
        """Return whether the wait is to end."""
        ...


def write_frame(target: int, frame: bytes) -> None:
    """Write one frame to a file descriptor."""
    remaining = memoryview(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    while remaining:
        remaining = remaining[os.write(target, remaining) :]


def receive_frame(source: int, limit: FrameLimit) -> bytes | None:
    """Read one frame from a file descriptor.

    Returns None when the limit is exceeded and nothing can be read, END_OF_STREAM if the other side has ended or
    announces more than MAX_FRAME_BYTES.
    """
    received, num_bytes = bytearray(), LENGTH_BYTES
    readable = select.poll()
    readable.register(source, select.POLLIN)
    while len(received) < num_bytes:
        while not readable.poll(CHECK_MS):
            if limit.is_exceeded():
                return None
        chunk = os.read(source, READ_BYTES)
        if not chunk:
            return END_OF_STREAM
        received += chunk
        if len(received) >= LENGTH_BYTES:
            num_bytes = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
            if num_bytes > LENGTH_BYTES + MAX_FRAME_BYTES:
                return END_OF_STREAM
    return bytes(received[LENGTH_BYTES:])


def read_frame(source: IO[bytes]) -> bytes:
    """Read one frame without a limit. Returns END_OF_STREAM at the end."""
    length = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(length, "big")) if len(length) == LENGTH_BYTES else END_OF_STREAM
