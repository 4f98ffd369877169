"""ServerBenchmark: measures a server under one phase of load after another and keeps partial results."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import orjson

from chairlift.bench.server.api_requests import PreparedRequests
from chairlift.bench.server.arrival_times import arrival_times, with_arrival_times
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import Client, NoResponse
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.loadgen import LoadPhase
from chairlift.bench.server.overload import judge, median_phase, tokens_per_request
from chairlift.bench.server.phase_summary import distribution_of, summarize_phase
from chairlift.bench.server.recovery_probes import (
    GIVE_UP_SECONDS,
    PROBE_TOKENS,
    QUEUEING_GIVE_UP_SECONDS,
    RecoveryProbes,
)
from chairlift.bench.server.response_recorder import ResponseRecorder, error_message_of
from chairlift.bench.server.server_memory import MemoryWatch
from chairlift.bench.workload.workload import WorkloadRequest

CAPACITY_SECONDS = 10.0
CONCURRENCY, OVERLOAD_CONCURRENCY = 32, 64

PROBE = WorkloadRequest(at=0.0, prompt_token_ids=(1,) * PROBE_TOKENS[0], output_tokens=PROBE_TOKENS[1])
"""A small request, whose duration is mostly waiting time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLoad:
    """The load of one phase: a rate, a concurrency, or neither for the workload's own times."""

    name: str
    rate: float | None = None
    concurrency: int | None = None
    seconds: float = math.inf


async def first_model(client: Client) -> str:
    """Return the first model in a server's /v1/models.

    Raises NoResponse, with the server's error message if there is one.
    """
    status, body = await client.fetch("GET", "/v1/models")
    if status != 200:
        raise NoResponse(f"{client.address.url} does not list its models: {error_message_of(body)} ({status})")
    try:
        return str(orjson.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise NoResponse(f"{client.address.url} names no model in /v1/models") from None


def _capacity(phase: Mapping[str, Any]) -> float:
    """Return the capacity in requests per second: output tokens per second divided by tokens per request.

    Completed requests are not counted, because in so short a phase few long ones complete.
    """
    return float(phase["output_tokens_per_second"] or 0.0) / (tokens_per_request(phase, phase) or math.inf)


class ServerBenchmark:
    """Measures a server.

    Attributes:
        phases: results of each phase; an interrupted one is included and not `complete`.
        baseline: seconds of a probe on the idle server; None without an overload test.
    """

    def __init__(
        self, plan: BenchmarkPlan, client: Client, stream: PreparedRequests, say: Callable[[str], None]
    ) -> None:
        self.phases: list[dict[str, Any]] = []
        self.baseline: float | None = None
        self._plan = plan
        self._client = client
        self._stream = stream
        self._say = say

    async def check_reachable(self) -> None:
        """Check that one request succeeds before any is measured.

        Raises NoResponse with the server's error message.
        """
        prepare = self._stream.prepare(PROBE)
        record = HttpRequestRecord(due=0.0, sent=0.0)
        recorder = ResponseRecorder(record, 0.0)
        recorder.end(await self._client.send(prepare.request, recorder, self._plan.timeout))
        if record.outcome is Outcome.OK:
            return
        message = (
            recorder.error_text() if record.status not in (0, 200) else f"{record.code}: {record.why or 'no [DONE]'}"
        )
        raise NoResponse(f"{self._client.address.url} cannot serve the requests of this benchmark: {message}")

    async def run(self) -> None:
        """Run all phases; when cancelled, the results so far are kept."""
        plan = self._plan
        if plan.overload:
            give_up_seconds = QUEUEING_GIVE_UP_SECONDS if plan.queueing else GIVE_UP_SECONDS
            probes = RecoveryProbes(self._client, self._stream.prepare(PROBE), give_up_seconds)
            await probes.measure_baseline()
            self.baseline = probes.baseline
            for number in range(1, plan.rounds + 1):
                await self._overload(probes, "" if plan.rounds == 1 else f", round {number}")
        elif plan.rate:
            for rate in plan.rate:
                await self._measure(PhaseLoad(name=f"{rate:g}/s", rate=rate, seconds=plan.seconds))
        elif self._stream.size is not None and plan.concurrency is None:
            await self._measure(PhaseLoad(name="trace"))
        else:
            num_clients = plan.concurrency or CONCURRENCY
            await self._measure(
                PhaseLoad(name=f"{num_clients} at a time", concurrency=num_clients, seconds=plan.seconds)
            )

    def overload(self) -> dict[str, Any] | None:
        """Return the verdict on an overload test, None when there was none or it is incomplete."""
        phases_per_round, phases = len(self._plan.overload) + 2, self.phases
        whole = len(phases) == phases_per_round * self._plan.rounds and all(each["complete"] for each in phases)
        if not self._plan.overload or not whole:
            return None
        capacity = median(map(_capacity, phases[::phases_per_round]))
        medians = [median_phase(phases[place::phases_per_round]) for place in range(phases_per_round)]
        verdict = judge(medians, queueing=self._plan.queueing)
        return {"probe_seconds": self.baseline, "capacity_per_second": capacity, **verdict}

    async def _overload(self, probes: RecoveryProbes, suffix: str) -> None:
        plan = self._plan
        num_clients = plan.concurrency or OVERLOAD_CONCURRENCY
        seconds = min(CAPACITY_SECONDS, plan.seconds)
        await self._measure(
            PhaseLoad(name=f"{num_clients} at a time{suffix}", concurrency=num_clients, seconds=seconds)
        )
        capacity = _capacity(self.phases[-1])
        if not capacity:
            raise NoResponse(f"{self._client.address.url} completed no request within {seconds:g} s")
        for factor in (1.0, *plan.overload):
            load = PhaseLoad(name=f"{factor:g} x capacity{suffix}", rate=factor * capacity, seconds=plan.seconds)
            await self._measure(load, probes)

    async def _measure(self, load: PhaseLoad, probes: RecoveryProbes | None = None) -> None:
        """Run one phase and keep its results, even if it is cancelled."""
        if self.phases:
            await asyncio.sleep(self._plan.pause)
        self._say(f"phase {len(self.phases) + 1}: {load.name}")
        memory = MemoryWatch(self._client)
        async with memory:
            phase = LoadPhase(self._client, self._plan.timeout)
            result: dict[str, Any] = {"name": load.name, "complete": False}
            try:
                await self._send(phase, load)
                if probes is not None:
                    result["recovery_seconds"] = await probes.until_normal()
                await phase.wait_until_done()
                result["complete"] = True
            finally:
                await phase.end()
                self.phases.append(result | self._phase_report(phase, load) | {"server_memory_bytes": memory.result()})
        self.phases[-1]["server_memory_bytes"] = memory.result()

    async def _send(self, phase: LoadPhase, load: PhaseLoad) -> None:
        plan = self._plan
        if load.concurrency is not None:
            await phase.closed_loop(self._stream, load.concurrency, load.seconds, plan.requests)
        elif load.rate is not None:
            times = arrival_times(load.rate, plan.arrivals, f"{plan.seed} {len(self.phases)}")
            await phase.open_loop(with_arrival_times(self._stream, times, load.seconds, plan.requests))
        else:
            trace_requests = (next(self._stream) for _ in range(self._stream.size or 0))
            await phase.open_loop(
                prepare for prepare in trace_requests if plan.duration is None or prepare.at < plan.duration
            )

    def _phase_report(self, phase: LoadPhase, load: PhaseLoad) -> dict[str, Any]:
        records = phase.records
        by_count = load.seconds == math.inf or len(records) == self._plan.requests
        seconds = None if by_count else min(load.seconds, phase.now)
        return {
            "load": {"rate": load.rate, "concurrency": load.concurrency, "arrivals": self._plan.arrivals},
            "offered_per_second": load.rate,
            "seconds": phase.now,
            **summarize_phase(records, self._plan.slo, seconds),
            "generator": {
                "send_lag_seconds": distribution_of(each.sent - each.due for each in records),
                "loop_lag_seconds": distribution_of(phase.loop_lags),
                "cpu_share": phase.cpu_share,
            },
        }
