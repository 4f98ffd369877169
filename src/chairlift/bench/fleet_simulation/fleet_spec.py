"""FleetSpec: what a user asks a fleet simulation for; makes the load, and chooses what is not given."""

import math
from dataclasses import dataclass, field, replace

from chairlift.bench.fleet_simulation.fleet_run import FleetOptions
from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.load.public_traces import read_arrivals
from chairlift.bench.fleet_simulation.load.synthetic_arrivals import RATE_CURVES, ArrivalOptions, draw_arrivals
from chairlift.bench.fleet_simulation.replica_capacity_search import measure_capacity
from chairlift.bench.fleet_simulation.scaling_rule_comparison import FleetLoad
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.core.errors import ConfigError

TRACE_SUFFIXES = (".csv", ".jsonl")

PEAK_SHARE = 0.7
"""Share of the fleet's capacity that the highest rate takes if no rate is given."""

DEFAULT_REQUESTS = 20_000
DEFAULT_SLO = {"ttft": 3.0, "tpot": 0.1}
START_SHARE = 1.3
"""Replicas at the start, as a multiple of what the first minute needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """Load and fleet; see FleetOptions, ArrivalOptions and FleetLoad. Raises ConfigError.

    Attributes:
        max_replicas: most replicas.
        machine: model and settings of every replica.
        workload: a rate curve, or the path of a trace.
        requests: number of requests; None for DEFAULT_REQUESTS, or all of the trace.
        rate: mean requests per second; None for PEAK_SHARE of the fleet's capacity at the peak, or that of the trace.
        period_seconds: length of a day, or mean time between bursts; None for the whole load.
        prompt_tokens: mean length of a prompt.
        output_tokens: mean length of an output.
        policy: name of the routing policy.
        min_replicas: fewest replicas.
        cold_start_seconds: least and most seconds of a cold start.
        slo: limits of a good request.
        slo_goal: share of the requests that are to be good.
        concurrency_ratios: targets of the autoscaler to compare.
        seed: seed of everything.
    """

    max_replicas: int
    machine: SimReplicaSettings = field(default_factory=SimReplicaSettings)
    workload: str = "diurnal"
    requests: int | None = None
    rate: float | None = None
    period_seconds: float | None = None
    prompt_tokens: int = 256
    output_tokens: int = 128
    policy: str = "prefix"
    min_replicas: int = 1
    cold_start_seconds: tuple[float, float] = (60.0, 60.0)
    slo: dict[str, float] = field(default_factory=lambda: dict(DEFAULT_SLO))
    slo_goal: float = 0.99
    concurrency_ratios: tuple[float, ...] = (0.7, 0.5, 0.3)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            message = f"min_replicas must be between 0 and the {self.max_replicas} replicas, got {self.min_replicas}"
            raise ConfigError(message, option="min_replicas")
        if not 0 < self.slo_goal <= 1:
            raise ConfigError(f"slo_goal must be above 0 and at most 1, got {self.slo_goal:g}", option="slo_goal")
        if not 0 < self.cold_start_seconds[0] <= self.cold_start_seconds[1] < math.inf:
            raise ConfigError("cold_start must be one or two ascending numbers above 0", option="cold_start")
        if self.workload not in RATE_CURVES and not self.workload.endswith(TRACE_SUFFIXES):
            names = ", ".join(RATE_CURVES)
            message = f"unknown workload {self.workload!r} of a fleet; available are {names}, or FILE.csv, FILE.jsonl"
            raise ConfigError(message, option="workload")

    def make(self) -> tuple[FleetLoad, float]:
        """Return the load, and the requests per second at which one replica reaches the goal.

        Raises ConfigError when a replica alone cannot reach it, InvalidRequest for a trace that is invalid.
        """
        arrivals = self._arrivals(self.rate or 1.0)
        options = FleetOptions(
            machine=self.machine, policy=self.policy, max_replicas=self.max_replicas,
            cold_start_seconds=self.cold_start_seconds, slo=self.slo, seed=self.seed,
        )  # fmt: skip
        load = FleetLoad(
            arrivals=arrivals,
            options=options,
            min_replicas=self.min_replicas,
            slo_goal=self.slo_goal,
            concurrency_ratios=self.concurrency_ratios,
        )
        self.machine.check(arrivals)
        capacity = measure_capacity(load)
        if self.rate is None and self.workload in RATE_CURVES:
            shape = arrivals.rates(arrivals.seconds / 200)
            peak_ratio = float(max(shape)) * arrivals.seconds / len(arrivals.at)
            arrivals = self._arrivals(PEAK_SHARE * self.max_replicas * capacity / peak_ratio)
        first_rate = float(arrivals.rates(min(60.0, arrivals.seconds))[0])
        initial = min(self.max_replicas, max(1, self.min_replicas, math.ceil(START_SHARE * first_rate / capacity)))
        return replace(load, arrivals=arrivals, options=replace(options, initial_replicas=initial)), capacity

    def _arrivals(self, rate: float) -> Arrivals:
        if self.workload not in RATE_CURVES:
            return read_arrivals(self.workload, requests=self.requests, rate=self.rate)
        requests = self.requests or DEFAULT_REQUESTS
        return draw_arrivals(ArrivalOptions(
            kind=self.workload, rate=rate, requests=requests, prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens, seed=self.seed,
            period_seconds=requests / rate if self.period_seconds is None else self.period_seconds,
        ))  # fmt: skip
