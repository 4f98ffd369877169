"""Messages over a pipe: in pieces, at its end, without a parent, and with a reader that does not read."""

import os
import threading
from collections.abc import Iterator

import pytest

from chairlift.core.errors import EngineDead
from chairlift.model.distributed import frames
from chairlift.model.distributed.frames import read_frame, write_frame


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, target = os.pipe()
    os.set_blocking(target, False)
    yield source, target
    for descriptor in (source, target):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_messages_larger_than_the_pipe_arrive_in_order(pipe: tuple[int, int]) -> None:
    source, target = pipe
    contents = [os.urandom(size) for size in (0, 5, 300_000)]

    def write() -> None:
        for content in contents:
            write_frame(target, len(content).to_bytes(4, "big") + content, 30.0)

    writer = threading.Thread(target=write)
    writer.start()
    assert [read_frame(source, os.getppid()) for _ in contents] == contents
    writer.join()


def test_the_end_of_the_pipe_is_none_also_within_a_message(pipe: tuple[int, int]) -> None:
    source, target = pipe
    os.write(target, (7).to_bytes(4, "big") + b"abc")
    os.close(target)
    assert read_frame(source) is None
    assert read_frame(source, os.getppid()) is None


def test_a_reader_that_has_lost_its_parent_stops(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PARENT_CHECK_SECONDS", 0.01)
    assert read_frame(pipe[0], os.getppid() + 1) is None


def test_a_reader_that_does_not_read_or_has_ended_is_an_error(pipe: tuple[int, int]) -> None:
    source, target = pipe
    with pytest.raises(EngineDead, match=r"has not read its messages for 0\.05 s"):
        write_frame(target, bytes(1_000_000), 0.05)
    os.close(source)
    with pytest.raises(EngineDead, match="does not read its messages"):
        write_frame(target, b"abcd", 0.05)
