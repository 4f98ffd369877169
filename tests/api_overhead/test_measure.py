"""What the door costs is counted and timed right, over a real replica of its own."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from api_overhead.measure import _Counter, chunks, direct, requests
from api_overhead.replica import service
from api_overhead.server_fixture import Place, replica


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with replica(0.02) as found:
        yield found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 1000])
def test_events_are_counted_however_they_are_cut(size: int) -> None:
    total, times = [0], [0.0]
    counter, body = _Counter(total, times), b'data: {"data":"data"}\n\n' * 9 + b"data: [DONE]\n\n"
    for at in range(0, len(body), size):
        counter.body(body[at : at + size], 1.0)
    assert total == [10]


def test_what_is_no_stream_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="429"):
        _Counter([0], None).head(429, [])


def test_streams_are_counted(place: Place) -> None:
    found = asyncio.run(chunks(place, 4, 1.0, scrapes=10.0))
    assert 0 < found["chunks_per_second"] <= 4 / 0.02 * 1.2
    assert 0 < found["gap_seconds"]["p50"] <= found["gap_seconds"]["max"]
    assert found["api_core_share"] >= 0


@pytest.mark.parametrize("stream", [False, True])
def test_requests_are_timed(place: Place, stream: bool) -> None:
    found = asyncio.run(requests(place, 20.0, 5, 1.0, stream=stream))
    assert found["how"] == ("streamed" if stream else "whole") and found["requests"] > 3
    assert found["request_seconds"]["p50"] >= 5 * 0.02
    assert 0 < found["outside_seconds"]["p50"] < found["request_seconds"]["p50"]


def test_the_same_is_timed_without_a_door() -> None:
    made = service(0.02)
    with closing(made.client):
        found = asyncio.run(direct(made, 20.0, 5, 1.0))
    assert found["requests"] > 3 and found["request_seconds"]["p50"] >= 5 * 0.02
    assert 0 < found["outside_seconds"]["p50"] < found["request_seconds"]["p50"]
