"""Serving measured: phase after phase of load for a server, and what was found even where it ends early."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import orjson

from chairlift.bench.server.api_requests import RequestStream
from chairlift.bench.server.http_client import Client, NoResponse
from chairlift.bench.server.loadgen import EVEN, POISSON, LoadPhase, arrival_times, with_arrival_times
from chairlift.bench.server.overload import PROBE_TOKENS, RecoveryProbes, judge, middle, tokens_a_request
from chairlift.bench.server.response_recorder import HttpRequestRecord, Outcome, ResponseRecorder, error_message_of
from chairlift.bench.server.server_memory import MemoryWatch
from chairlift.bench.server.slo import SLO, distribution_of, summarize_phase
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.errors import ConfigError

DURATION = 30.0
CAPACITY_SECONDS = 10.0
CONCURRENCY, OVERLOAD_CONCURRENCY = 32, 64

PROBE = WorkloadRequest(at=0.0, prompt_token_ids=(1,) * PROBE_TOKENS[0], output_tokens=PROBE_TOKENS[1])
"""Small: what its answer takes is the wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """What is asked of a server. Raises ConfigError for what cannot be.

    Attributes:
        rates: requests a second of one open-loop phase after another.
        concurrency: of a closed loop; None where there is none.
        factors: of the capacity, of one open-loop phase after another; the capacity is found first.
        rounds: how often all of that is done; medians are judged, where a machine is not always as fast.
        duration: seconds of a phase; None where `requests` bounds it.
        requests: of a phase at most.
        arrivals: POISSON or EVEN.
        seed: of the arrivals.
        pause: seconds between phases.
        timeout: seconds that a request may take.
        goals: of good answers.
    """

    rates: tuple[float, ...] = ()
    concurrency: int | None = None
    factors: tuple[float, ...] = ()
    rounds: int = 1
    duration: float | None = None
    requests: int | None = None
    arrivals: str = POISSON
    seed: int = 0
    pause: float = 2.0
    timeout: float = 120.0
    goals: SLO = field(default_factory=lambda: SLO({}))

    def __post_init__(self) -> None:
        if self.rates and (self.factors or self.concurrency is not None):
            raise ConfigError("--rate goes neither with --concurrency nor with --overload", option="rate")
        for name, values in (("rate", self.rates), ("overload", self.factors)):
            for value in values:
                if not 0 < value < math.inf:
                    raise ConfigError(f"--{name} takes positive numbers, got {value:g}", option=name)
        for name in ("duration", "timeout"):
            if (seconds := getattr(self, name)) is not None and not 0 < seconds < math.inf:
                raise ConfigError(f"--{name} must be a positive number of seconds, got {seconds:g}", option=name)
        if self.rounds > 1 and not self.factors:
            raise ConfigError("--rounds are those of --overload", option="rounds")
        for name in ("concurrency", "requests", "rounds"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ConfigError(f"--{name} must be at least 1, got {count}", option=name)
        if not 0 <= self.pause < math.inf:
            raise ConfigError(f"--pause must be a number of seconds, got {self.pause:g}", option="pause")
        if self.arrivals not in (POISSON, EVEN):
            raise ConfigError(f"--arrivals are {POISSON} or {EVEN}, not {self.arrivals!r}", option="arrivals")

    @property
    def seconds(self) -> float:
        """Of a phase; endless where `requests` alone bounds it."""
        if self.duration is None:
            return DURATION if self.requests is None else math.inf
        return self.duration


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLoad:
    """One phase to come: a rate, a concurrency, or neither for the workload's own times."""

    name: str
    rate: float | None = None
    concurrency: int | None = None
    seconds: float = math.inf


async def first_model(client: Client) -> str:
    """Return the first model that a server names. Raises NoAnswer, with the server's words where it has some."""
    status, body = await client.fetch("GET", "/v1/models")
    if status != 200:
        raise NoResponse(f"{client.address.url} does not say what it serves: {error_message_of(body)} ({status})")
    try:
        return str(orjson.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise NoResponse(f"{client.address.url} names no model in /v1/models") from None


def _capacity(phase: Mapping[str, Any]) -> float:
    """Requests a second: tokens that came, by those of a request; in so short a time few long ones are over."""
    return float(phase["output_tokens_per_second"] or 0.0) / (tokens_a_request(phase, phase) or math.inf)


class ServerBenchmark:
    """Measures a server.

    Attributes:
        phases: what was found, phase by phase; an interrupted one is among them and is not `complete`.
        baseline: seconds of a probe when the server was idle; None without an overload.
    """

    def __init__(self, plan: BenchmarkPlan, client: Client, deck: RequestStream, say: Callable[[str], None]) -> None:
        self.phases: list[dict[str, Any]] = []
        self.baseline: float | None = None
        self._plan = plan
        self._client = client
        self._deck = deck
        self._say = say

    async def check_reachable(self) -> None:
        """See that one request is answered before any is counted. Raises NoAnswer with the server's words."""
        shot = self._deck.shot(PROBE)
        record = HttpRequestRecord(due=0.0, sent=0.0)
        answer = ResponseRecorder(record, 0.0)
        answer.end(await self._client.ask(shot.request, answer, self._plan.timeout))
        if record.outcome is Outcome.OK:
            return
        said = answer.said() if record.status not in (0, 200) else f"{record.code}: {record.why or 'no [DONE]'}"
        raise NoResponse(f"{self._client.address.url} does not serve this: {said}")

    async def run(self) -> None:
        """Measure everything. Cancelled, it keeps what was found so far."""
        plan = self._plan
        if plan.factors:
            probes = RecoveryProbes(self._client, self._deck.shot(PROBE))
            await probes.learn()
            self.baseline = probes.baseline
            for number in range(1, plan.rounds + 1):
                await self._overload(probes, "" if plan.rounds == 1 else f", round {number}")
        elif plan.rates:
            for rate in plan.rates:
                await self._measure(PhaseLoad(name=f"{rate:g}/s", rate=rate, seconds=plan.seconds))
        elif self._deck.size is not None and plan.concurrency is None:
            await self._measure(PhaseLoad(name="trace"))
        else:
            asked = plan.concurrency or CONCURRENCY
            await self._measure(PhaseLoad(name=f"{asked} at a time", concurrency=asked, seconds=plan.seconds))

    def overload(self) -> dict[str, Any] | None:
        """Return the verdict on an overload that was measured to its end."""
        a_round, phases = len(self._plan.factors) + 2, self.phases
        whole = len(phases) == a_round * self._plan.rounds and all(each["complete"] for each in phases)
        if not self._plan.factors or not whole:
            return None
        capacity = median(map(_capacity, phases[::a_round]))
        verdict = judge([middle(phases[place::a_round]) for place in range(a_round)])
        return {"probe_seconds": self.baseline, "capacity_per_second": capacity, **verdict}

    async def _overload(self, probes: RecoveryProbes, suffix: str) -> None:
        plan = self._plan
        asked = plan.concurrency or OVERLOAD_CONCURRENCY
        seconds = min(CAPACITY_SECONDS, plan.seconds)
        await self._measure(PhaseLoad(name=f"{asked} at a time{suffix}", concurrency=asked, seconds=seconds))
        capacity = _capacity(self.phases[-1])
        if not capacity:
            raise NoResponse(f"{self._client.address.url} ended no request well within {seconds:g} s")
        for factor in (1.0, *plan.factors):
            load = PhaseLoad(name=f"{factor:g} x capacity{suffix}", rate=factor * capacity, seconds=plan.seconds)
            await self._measure(load, probes)

    async def _measure(self, load: PhaseLoad, probes: RecoveryProbes | None = None) -> None:
        """Run one phase, and keep what was found in it even if it is cancelled."""
        if self.phases:
            await asyncio.sleep(self._plan.pause)
        self._say(f"phase {len(self.phases) + 1}: {load.name}")
        memory = MemoryWatch(self._client)
        async with memory:
            phase = LoadPhase(self._client, self._plan.timeout)
            found: dict[str, Any] = {"name": load.name, "complete": False}
            try:
                await self._send(phase, load)
                if probes is not None:
                    found["recovery_seconds"] = await probes.until_normal()
                await phase.settled()
                found["complete"] = True
            finally:
                await phase.end()
                self.phases.append(found | self._found(phase, load) | {"server_memory_bytes": memory.found()})
        self.phases[-1]["server_memory_bytes"] = memory.found()

    async def _send(self, phase: LoadPhase, load: PhaseLoad) -> None:
        plan = self._plan
        if load.concurrency is not None:
            await phase.closed_loop(self._deck, load.concurrency, load.seconds, plan.requests)
        elif load.rate is not None:
            times = arrival_times(load.rate, plan.arrivals, f"{plan.seed} {len(self.phases)}")
            await phase.open_loop(with_arrival_times(self._deck, times, load.seconds, plan.requests))
        else:
            own = (next(self._deck) for _ in range(self._deck.size or 0))
            await phase.open_loop(shot for shot in own if plan.duration is None or shot.at < plan.duration)

    def _found(self, phase: LoadPhase, load: PhaseLoad) -> dict[str, Any]:
        records = phase.records
        by_count = load.seconds == math.inf or len(records) == self._plan.requests
        seconds = None if by_count else min(load.seconds, phase.now)
        return {
            "load": {"rate": load.rate, "concurrency": load.concurrency, "arrivals": self._plan.arrivals},
            "offered_per_second": load.rate,
            "seconds": phase.now,
            **summarize_phase(records, self._plan.goals, seconds),
            "generator": {
                "send_lag_seconds": distribution_of(each.sent - each.due for each in records),
                "loop_lag_seconds": distribution_of(phase.beats),
                "cpu_share": phase.cpu_share,
            },
        }
