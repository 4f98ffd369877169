"""read_frame, write_frame: messages with their length before them, over pipes whose ends may die."""

import os
import select
import time

from chairlift.core.errors import EngineDead
from chairlift.model.distributed.rank_messages import LENGTH_BYTES

PARENT_CHECK_SECONDS = 1.0


def read_frame(source: int, parent: int | None = None) -> bytes | None:
    """Wait for one message; returns None at the end of the pipe, or when this process has lost its parent.

    Args:
        source: descriptor to read from.
        parent: process id of the parent; a fork of it may keep a pipe open that it has left. None does not check.
    """
    length = _read_exactly(source, LENGTH_BYTES, parent)
    return None if length is None else _read_exactly(source, int.from_bytes(length, "big"), parent)


def _read_exactly(source: int, count: int, parent: int | None) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        if parent is not None and not select.select([source], [], [], PARENT_CHECK_SECONDS)[0]:
            if os.getppid() != parent:
                return None
            continue
        try:
            part = os.read(source, count - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def write_frame(target: int, frame: bytes, seconds: float) -> None:
    """Write a message to a non-blocking descriptor.

    Raises EngineDead when the reader has ended, or does not read for `seconds`.
    """
    remaining, until = memoryview(frame), time.monotonic() + seconds
    while remaining:
        try:
            remaining = remaining[os.write(target, remaining) :]
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0 or not select.select([], [target], [], left)[1]:
                raise EngineDead(f"a rank has not read its messages for {seconds:g} s") from None
        except OSError as error:
            raise EngineDead(f"a rank does not read its messages: {error}") from error
