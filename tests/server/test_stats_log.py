"""stats_log.py: throughput of the interval, queue and cache usage; no line while nothing happens."""

import asyncio
import logging
from typing import Any

import httpx
import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.server.stats_log import StatsLog
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController, AdmissionLimits
from support_process import TIMEOUT_SECONDS, wait_until
from support_server import CHAT, HELLO, fake_server
from support_step_stats import make_stats


def make_log() -> tuple[StatsLog, Telemetry, AdmissionController, FakeClock]:
    telemetry, clock = Telemetry("demo", ()), FakeClock()
    admission = AdmissionController(AdmissionLimits(), clock)
    return StatsLog(telemetry, admission, clock), telemetry, admission, clock


def test_a_line_has_the_rates_of_its_interval() -> None:
    stats_log, telemetry, admission, clock = make_log()
    permit = admission.admit(5)
    for _ in range(2):
        telemetry.record_step(make_stats(num_tokens=60, num_prefill_tokens=50), 2048)
        telemetry.record_tokens(30, None)
        admission.engine_counts = 2, 7
        load = LoadReport(state=ReplicaState.READY, prompt_tokens=100, cached_tokens=25)
        cache: Any = {"total_blocks": 80, "free_blocks": 50, "cached_blocks": 20, "allocated_blocks": 10}
        telemetry.update_gauges(ReplicaState.READY, load, cache, admission, 0, 1.0)
        clock.advance(4.0)
        assert stats_log.next_line() == (
            "prompt throughput: 12.5 tokens/s, generation throughput: 7.5 tokens/s, running: 7 requests, "
            "waiting: 2 requests, KV cache usage: 12.5%, prefix cache hit rate: 25.0%"
        )
    clock.advance(4.0)
    stalled = stats_log.next_line()
    assert stalled is not None and stalled.startswith("prompt throughput: 0.0 tokens/s"), "a request is still open"
    permit.end()
    clock.advance(4.0)
    assert stats_log.next_line() is None


def test_an_idle_server_has_no_line() -> None:
    stats_log, telemetry, _, clock = make_log()
    clock.advance(10.0)
    assert stats_log.next_line() is None
    telemetry.record_tokens(1, None)
    assert stats_log.next_line() is not None, "the clock may stand still"
    assert stats_log.next_line() is None


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_lines_go_to_the_log_or_else_to_people(level: int, caplog: pytest.LogCaptureFixture) -> None:
    stats_log, telemetry, _, _ = make_log()
    printed: list[str] = []

    async def scenario() -> None:
        running = asyncio.create_task(stats_log.run(0.001, printed.append))
        await asyncio.sleep(0)
        telemetry.record_tokens(1, None)
        while not printed and not caplog.records:
            await asyncio.sleep(0.001)
        running.cancel()

    with caplog.at_level(level, "chairlift.server.stats_log"):
        asyncio.run(asyncio.wait_for(scenario(), 10))
    lines = [record.getMessage() for record in caplog.records]
    assert (len(lines), len(printed)) == ((1, 0) if level == logging.INFO else (0, 1))
    assert (lines + printed)[0].startswith("prompt throughput: ")


def test_a_server_writes_a_line_under_traffic() -> None:
    with fake_server(server={"log_stats_interval": 0.05}) as server:
        assert not any("throughput" in line for line in server.lines)
        httpx.post(server.url + CHAT, json=HELLO, timeout=TIMEOUT_SECONDS).raise_for_status()
        wait_until(lambda: any(line.startswith("prompt throughput: ") for line in server.lines))
