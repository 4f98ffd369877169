"""The measurements of api_overhead count chunks and time requests correctly, against a real replica."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from api_overhead.fake_engine_replica import start_service
from api_overhead.measure import _EventCounter, measure_in_process, measure_requests, measure_streams
from api_overhead.running_replica import RunningReplica, running_replica
from support_shares import for_each


@pytest.fixture(scope="module")
def replica() -> Iterator[RunningReplica]:
    with running_replica(0.02) as running:
        yield running


@for_each("size", [1, 2, 3, 5, 6, 7, 1000])
def test_events_are_counted_however_they_are_cut(size: int) -> None:
    total, times = [0], [0.0]
    counter, body = _EventCounter(total, times), b'data: {"data":"data"}\n\n' * 9 + b"data: [DONE]\n\n"
    for at in range(0, len(body), size):
        counter.body(body[at : at + size], 1.0)
    assert total == [10]


def test_what_is_no_stream_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="429"):
        _EventCounter([0], None).head(429, [])


@pytest.mark.full
def test_streams_are_counted(replica: RunningReplica) -> None:
    result = asyncio.run(measure_streams(replica, 4, 1.0, scrapes_per_second=10.0))
    assert 0 < result["chunks_per_second"] <= 4 / 0.02 * 1.2
    assert 0 < result["gap_seconds"]["p50"] <= result["gap_seconds"]["max"]
    assert result["api_core_share"] >= 0


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
def test_requests_are_timed(replica: RunningReplica, stream: bool) -> None:
    result = asyncio.run(measure_requests(replica, 20.0, 5, 1.0, stream=stream))
    assert result["how"] == ("streamed" if stream else "whole") and result["requests"] > 3
    assert result["request_seconds"]["p50"] >= 5 * 0.02
    assert 0 < result["outside_seconds"]["p50"] < result["request_seconds"]["p50"]


@pytest.mark.full
def test_the_same_is_timed_in_process() -> None:
    service = start_service(0.02)
    with closing(service.client):
        result = asyncio.run(measure_in_process(service, 20.0, 5, 1.0))
    assert result["requests"] > 3 and result["request_seconds"]["p50"] >= 5 * 0.02
    assert 0 < result["outside_seconds"]["p50"] < result["request_seconds"]["p50"]
