"""Frames between processes: whole ones arrive in parts, and one that can be read is never too late."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from chairlift.engine.structured.sandbox_frames import (
    END_OF_STREAM,
    MAX_FRAME_BYTES,
    read_frame,
    receive_frame,
    write_frame,
)

Pipe = tuple[int, int]


class Limit:
    """A limit that does something each time it is looked at, and is exceeded when nothing is left to do."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def is_exceeded(self) -> bool:
        if not self._steps:
            return True
        self._steps.pop(0)()
        return False


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    source, target = os.pipe()
    yield source, target
    for end in (source, target):
        with suppress(OSError):  # a test has closed it
            os.close(end)


def test_a_frame_in_parts_is_whole_and_one_that_stops_is_none(pipe: Pipe) -> None:
    source, target = pipe
    steps = [lambda part=part: os.write(target, part) for part in (b"\0\0", b"\0\3a", b"b", b"c")]
    assert receive_frame(source, Limit(*steps)) == b"abc"
    assert receive_frame(source, Limit(steps[0])) is None


def test_a_frame_that_can_be_read_is_never_too_late(pipe: Pipe) -> None:
    """The reader was delayed itself, and its limit has been exceeded meanwhile."""
    source, target = pipe
    write_frame(target, b"late")
    assert receive_frame(source, Limit()) == b"late"


def test_a_frame_that_announces_too_much_counts_as_the_end(pipe: Pipe) -> None:
    source, target = pipe
    os.write(target, (MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x")
    assert receive_frame(source, Limit()) == END_OF_STREAM


def test_the_end_of_the_other_side_ends_the_wait(pipe: Pipe) -> None:
    source, target = pipe
    os.write(target, b"\0\0\0\3a")
    os.close(target)
    assert receive_frame(source, Limit()) == END_OF_STREAM
    with os.fdopen(os.dup(source), "rb") as stream:
        assert read_frame(stream) == END_OF_STREAM
