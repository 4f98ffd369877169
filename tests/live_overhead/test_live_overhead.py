"""live_overhead: snapshots are counted, a round has both measurements, and the report has their ratios."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from api_overhead.running_replica import running_replica
from chairlift.bench.server.http_client import NoResponse
from live_overhead.__main__ import main, summarize
from live_overhead.watcher_phase import EventCounter, Phase, find_model, measure_phase, running, send_requests
from support_shares import for_each

PHASE = Phase(
    num_watchers=0, seconds=2.0, num_tokens=1000, num_steps=100, engine_cpu_seconds=2.0, api_cpu_seconds=0.2,
    num_batch_events=0,
)  # fmt: skip


@for_each("size", [1, 2, 5, 11, 13, 14, 1000])
def test_snapshots_are_counted_however_they_are_cut(size: int) -> None:
    counter = EventCounter()
    body = b"event: hello\ndata: {}\n\n: still here\n\n" + b'event: batch\ndata: {"batch": 1}\n\n' * 7
    for at in range(0, len(body), size):
        counter.body(body[at : at + size], 1.0)
    assert counter.num_events == 7 and counter.has_begun.is_set()


def test_what_is_no_stream_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="403"):
        EventCounter().head(403, [])


def test_ratios_are_of_each_round() -> None:
    watched = replace(PHASE, num_watchers=5, num_tokens=990, engine_cpu_seconds=2.02, num_batch_events=50)
    slow = [replace(each, num_tokens=each.num_tokens / 2, seconds=4.0) for each in (PHASE, watched)]
    result = summarize([(PHASE, watched), (slow[0], slow[1]), (PHASE, replace(watched, num_tokens=980))])
    assert result["ratios"]["speed"] == pytest.approx([0.985, 0.99, 0.99])
    assert result["ratios"]["engine_cpu_per_step"] == pytest.approx([1.01] * 3)
    assert result["ratios"]["api_cpu"] == pytest.approx([1.0] * 3)
    assert result["without"]["speed"] == 500.0 and result["with"]["speed"] == 490.0
    assert result["batch_events_per_watcher_and_second"] == 5.0


@pytest.mark.full
def test_both_measurements_see_the_load_and_only_watchers_get_snapshots() -> None:
    async def scenario() -> tuple[Phase, Phase]:
        client = replica.client()
        try:
            async with running(send_requests(client, await find_model(client), 20, Random(1))):
                return await measure_phase(replica, 0, 0.5), await measure_phase(replica, 3, 1.0)
        finally:
            client.close()

    with running_replica(0.01) as replica:
        without, watched = asyncio.run(scenario())
    assert without.num_watchers == without.num_batch_events == 0 and watched.num_watchers == 3
    assert min(without.num_tokens, without.num_steps, watched.num_tokens, watched.num_steps) > 0
    assert watched.num_batch_events >= 3


@pytest.mark.full
def test_a_load_that_fails_is_an_error() -> None:
    async def scenario() -> None:
        client = replica.client()
        try:
            async with running(send_requests(client, "unknown", 20, Random(1))):
                await asyncio.sleep(0.5)
        finally:
            client.close()

    with running_replica(0.01) as replica, pytest.raises(NoResponse, match="status 404"):
        asyncio.run(scenario())


@pytest.mark.full
def test_the_report_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "live.json"
    words = ["chairlift:random", "--rounds", "2", "--seconds", "0.5", "--requests", "4", "--json", str(path)]
    assert main(words) == 0
    document = msgspec.json.decode(path.read_bytes())
    assert document["kind"] == "chairlift live overhead" and len(document["rounds"]) == 2
    assert "cost of 5 watchers: " in capsys.readouterr().out
