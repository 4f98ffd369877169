"""BenchmarkPlan: impossible plans are errors; rates, closed loops, traces and overload give the phases they name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server import recovery_probes
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import NoResponse
from chairlift.bench.server.server_benchmark import ServerBenchmark
from chairlift.bench.server.slo import SLO
from chairlift.core.errors import ConfigError
from chairlift.engine.runner.fake_model import FakeConfig
from support_scripted_server import (
    ReceivedRequest,
    Script,
    plain_response,
    respond_with,
    scripted_server,
    stream_response,
)
from support_server import fake_server, run
from support_server_benchmark import measured
from support_shares import for_each

FAKE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, verify=False)


async def against(script: Script, plan: BenchmarkPlan) -> ServerBenchmark:
    async with scripted_server(script) as server:
        return await measured(server.url, plan)


@for_each(("fields", "said"), [
    ({"rate": (1.0,), "concurrency": 2}, "--rate cannot be given together with"),
    ({"rate": (1.0,), "overload": (2.0,)}, "--rate"),
    ({"rate": (1.0, 0.0)}, "each value of --rate must be a positive number, got 0"),
    ({"rounds": 2}, "--rounds needs --overload"),
    ({"queueing": True}, "--queueing needs --overload"),
    ({"overload": (2.0,), "rounds": 0}, "--rounds must be at least 1, got 0"),
    ({"overload": (float("inf"),)}, "each value of --overload must be a positive number, got inf"),
    ({"duration": 0.0}, "--duration must be a positive number of seconds, got 0"),
    ({"timeout": -1.0}, "--timeout must be"), ({"concurrency": 0}, "--concurrency must be at least 1, got 0"),
    ({"requests": 0}, "--requests must be at least 1"), ({"pause": -1.0}, "--pause must be"),
    ({"arrivals": "never"}, "--arrivals must be poisson or even, got 'never'"),
])  # fmt: skip
def test_plans_that_cannot_be(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BenchmarkPlan(**fields)


def test_the_length_of_a_phase() -> None:
    assert BenchmarkPlan().seconds == 30.0 and BenchmarkPlan(requests=5).seconds == float("inf")
    assert BenchmarkPlan(duration=2.0, requests=5).seconds == 2.0


def test_rates_one_after_another_and_what_the_server_counted_is_what_was_seen() -> None:
    said: list[str] = []
    with fake_server(FAKE) as server:
        plan = BenchmarkPlan(rate=(40.0, 80.0), duration=1.0, pause=0.0)
        serving = run(measured(server.url, plan, said=said))
        tokens = server.metric("output_tokens_total")
    slow, fast = serving.phases
    assert [(phase["name"], phase["offered_per_second"]) for phase in serving.phases] == [("40/s", 40), ("80/s", 80)]
    assert said == ["phase 1: 40/s", "phase 2: 80/s"] and serving.overload() is None
    assert fast["requests"]["total"] > slow["requests"]["total"] > 20
    for phase in serving.phases:
        counts = phase["requests"]
        assert counts["ok"] == counts["good"] == counts["total"] and counts["failed"] == counts["non_terminal"] == 0
        assert counts["miscounted"] == counts["other_lengths"] == 0
        assert phase["tokens"]["output"] == 44 * counts["ok"] and phase["tokens"]["prompt"] == 16 * counts["ok"]
        assert phase["complete"] and phase["server_memory_bytes"]["api"]["peak"] > 0
        assert 0 < phase["ttft_seconds"]["p50"] <= phase["e2e_seconds"]["p50"] <= phase["e2e_seconds"]["max"]
        assert set(phase["generator"]) == {"send_lag_seconds", "loop_lag_seconds", "cpu_share"}
    assert tokens == 44 * (slow["requests"]["ok"] + fast["requests"]["ok"]) + 1  # the greeting's


def test_the_same_seed_is_the_same_load_and_phases_differ() -> None:
    async def seen(seed: int) -> list[bytes]:
        async with scripted_server(respond_with(stream_response(1))) as server:
            await measured(server.url, BenchmarkPlan(rate=(500.0, 500.0), requests=5, seed=seed, pause=0.0))
            return [each.body for each in server.requests if each.path == "/v1/completions"][1:]

    def by_phase(bodies: list[bytes]) -> list[list[bytes]]:
        return [sorted(bodies[:5]), sorted(bodies[5:])]  # two milliseconds apart, they may overtake each other

    first = run(seen(1))
    assert len(first) == 10 == len(set(first)) and by_phase(run(seen(1))) == by_phase(first)


def test_a_closed_loop_and_what_its_phase_is_called() -> None:
    serving = run(against(respond_with(stream_response(1)), BenchmarkPlan(concurrency=3, requests=9)))
    (phase,) = serving.phases
    assert phase["name"] == "3 at a time" and phase["load"]["concurrency"] == 3
    assert phase["requests"]["total"] == 9 and phase["offered_per_second"] is None
    assert run(against(respond_with(stream_response(1)), BenchmarkPlan(requests=2))).phases[0]["name"] == "32 at a time"


def test_a_trace_has_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0, "prompt": [1], "output_tokens": 2}\n{"at": 0.2, "prompt": [1], "output_tokens": 3}\n')

    async def main(plan: BenchmarkPlan) -> dict[str, Any]:
        async with scripted_server(respond_with(stream_response(1, 2))) as server:
            return (await measured(server.url, plan, WorkloadSpec(name=str(path)))).phases[0]

    phase = run(main(BenchmarkPlan()))
    assert phase["name"] == "trace" and phase["seconds"] >= 0.2
    assert phase["requests"]["total"] == 2 and phase["requests"]["other_lengths"] == 1
    assert run(main(BenchmarkPlan(duration=0.1)))["requests"]["total"] == 1
    assert run(main(BenchmarkPlan(rate=(200.0,), requests=5)))["requests"]["total"] == 5


def test_goals_make_the_goodput() -> None:
    async def slow(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(stream_response(1))

    counts = run(against(slow, BenchmarkPlan(requests=4, slo=SLO({"ttft": 0.05})))).phases[0]["requests"]
    assert (counts["ok"], counts["good"]) == (4, 0)


def test_a_greeting_that_is_no_stream_is_no_greeting() -> None:
    with pytest.raises(NoResponse, match=r"cannot serve the requests of this benchmark: unfinished: no \[DONE\]"):
        run(against(respond_with(plain_response(200, {"choices": []})), BenchmarkPlan(requests=1)))


@pytest.mark.full
def test_overload_of_a_real_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_probes, "PROBE_GAP_SECONDS", 0.05)
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, seconds_per_step=0.005, verify=False)
    limits = {"admission": {"max_waiting_requests": 4}}
    plan = BenchmarkPlan(overload=(15.0,), concurrency=8, duration=1.0, pause=0.0)
    with fake_server(config, scheduler={"max_running_requests": 8}, server=limits) as server:
        serving = run(measured(server.url, plan))
    assert [phase["name"] for phase in serving.phases] == ["8 at a time", "1 x capacity", "15 x capacity"]
    capacity, once, beyond = serving.phases
    found = serving.overload()
    assert found is not None and found["capacity_per_second"] == capacity["output_tokens_per_second"] / 44 > 0
    assert (
        once["offered_per_second"] == found["capacity_per_second"] == pytest.approx(beyond["offered_per_second"] / 15)
    )
    assert beyond["requests"]["refused"] > 0 and beyond["requests"]["by_code"] == {
        "overloaded": beyond["requests"]["refused"]
    }
    assert beyond["requests"]["refused_without_retry_after"] == beyond["requests"]["non_terminal"] == 0
    assert [row["name"] for row in found["rows"]] == ["1 x capacity", "15 x capacity"]
    assert all(row["recovery_seconds"] is not None and row["memory_ratio"] is not None for row in found["rows"])


@pytest.mark.full
def test_rounds_are_measured_one_after_the_other_and_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_probes, "PROBE_GAP_SECONDS", 0.05)
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, seconds_per_step=0.002, verify=False)
    plan = BenchmarkPlan(overload=(2.0,), rounds=2, concurrency=4, duration=0.5, pause=0.0)
    with fake_server(config) as server:
        serving = run(measured(server.url, plan))
    names = [f"{what}, round {number}" for number in (1, 2) for what in ("4 at a time", "1 x capacity", "2 x capacity")]
    assert [phase["name"] for phase in serving.phases] == names
    found = serving.overload()
    assert found is not None and len(found["rows"]) == 2
    capacities = [serving.phases[place]["offered_per_second"] for place in (1, 4)]
    assert found["capacity_per_second"] == pytest.approx(sum(capacities) / 2)


def test_a_server_without_capacity_ends_the_overload() -> None:
    async def refusing(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        greeted = len(server_saw) >= 6
        server_saw.append(seen)
        writer.write(plain_response(429, b"{}") if greeted else stream_response(1))

    server_saw: list[ReceivedRequest] = []
    with pytest.raises(NoResponse, match=r"completed no request within 0\.3 s"):
        run(against(refusing, BenchmarkPlan(overload=(2.0,), concurrency=1, duration=0.3)))
