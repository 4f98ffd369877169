"""Tests of SimReplica: its clock, its load report and its prefix cache."""

import pytest

from chairlift.bench.simulation.scenario_loads import SMALL_CPU
from chairlift.core.request import EngineOutput
from fleet_simulation.sim_replica import SimReplica


def replica() -> SimReplica:
    return SimReplica("r", SMALL_CPU, 1000, 10_000, 0)


def run(server: SimReplica) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while not server.is_idle:
        outputs += server.step()
    return outputs


def test_a_request_takes_the_time_of_its_steps_from_its_arrival_on() -> None:
    server = replica()
    server.submit("a", tuple(range(400)), 3, now=10.0)
    outputs = run(server)
    assert sum(len(output.token_ids) for output in outputs) == 3
    assert server.clock.now() == pytest.approx(10 + 400 * SMALL_CPU.prefill_token + 3 * SMALL_CPU.step, rel=0.2)


def test_the_second_request_of_a_prompt_hits_the_cache() -> None:
    server = replica()
    for name, cached in (("a", 0), ("b", 384)):
        server.submit(name, tuple(range(400)), 2, now=0.0)
        usage = run(server)[-1].usage
        assert usage is not None and usage.cached_tokens == cached


def test_the_load_is_reported_only_when_asked_and_open_requests_are_counted_at_once() -> None:
    server = replica()
    server.submit("a", tuple(range(400)), 2, now=0.0)
    server.count_open(1, 400)
    assert (server.candidate.open_requests, server.candidate.pending_prefill_tokens) == (1, 400)
    assert server.candidate.waiting_tokens == 0
    server.report_load()
    assert server.candidate.waiting_tokens == 400
    assert server.candidate.expected_wait_seconds == pytest.approx(400 * SMALL_CPU.prefill_token)
