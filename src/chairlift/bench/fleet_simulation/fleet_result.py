"""FleetResult: what a simulated fleet has served, when, and what it cost."""

from array import array
from dataclasses import dataclass, field
from typing import Any

from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.bench.report.percentiles import summarize

REVERSAL_SECONDS = 600.0
"""A change of the number of replicas in the other direction than the last one, within this time, is a reversal."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet at one moment; `arrived` counts the requests since the start."""

    at: float
    starting: int
    ready: int
    draining: int
    waiting: int
    arrived: int


@dataclass(slots=True)
class FleetResult:
    """Measurements of one run; seconds are simulated ones.

    Attributes:
        slo: limits of a good request in seconds: ttft, tpot, itl (longest gap), e2e.
        seconds: time of the load, in which replicas cost.
        ttft_seconds: time to the first token of each request, in the order of their ends.
        tpot_seconds: mean time between two tokens of each request; 0 for one token.
        itl_seconds: longest time between two tokens of each request.
        num_good: requests within every limit.
        prompt_tokens: prompt tokens of all requests.
        cached_tokens: those of them that were cached.
        replica_seconds: seconds in which replicas existed, all together.
        requests_by_replica: requests that each replica has served.
        max_waiting: most requests without a first token at once, held ones included.
        peak_replicas: most starting and ready replicas.
        growths: times that the number of replicas rose.
        shrinkings: times that it fell.
        reversals: changes in the other direction than the last one, within REVERSAL_SECONDS.
        states: the fleet at some moments.
    """

    slo: dict[str, float]
    seconds: float
    ttft_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    tpot_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    itl_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    num_good: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    replica_seconds: float = 0.0
    requests_by_replica: dict[str, int] = field(default_factory=dict)
    max_waiting: int = 0
    peak_replicas: int = 0
    growths: int = 0
    shrinkings: int = 0
    reversals: int = 0
    states: list[FleetState] = field(default_factory=list)
    _last_change: tuple[float, bool] | None = None

    def record_request(self, request: SimRequest, now: float) -> tuple[float, float, float]:
        """Add a request that has ended; return the time, its time to the first token and its mean ITL."""
        assert request.first_token_at is not None
        ttft, e2e = request.first_token_at - request.arrived_at, now - request.arrived_at
        tpot = (now - request.first_token_at) / max(1, request.output_tokens - 1)
        self.ttft_seconds.append(ttft)
        self.tpot_seconds.append(tpot)
        self.itl_seconds.append(request.longest_gap_seconds)
        limits = self.slo
        self.num_good += (
            ttft <= limits.get("ttft", ttft) and tpot <= limits.get("tpot", tpot)
            and request.longest_gap_seconds <= limits.get("itl", request.longest_gap_seconds)
            and e2e <= limits.get("e2e", e2e)
        )  # fmt: skip
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens
        return now, ttft, tpot

    def record_waiting(self, num_waiting: int) -> None:
        """Take note of the requests without a first token."""
        self.max_waiting = max(self.max_waiting, num_waiting)

    def record_replica(self, replica: FleetReplica, ended_at: float) -> None:
        """Add the time of a replica that is gone, or of one that is there at the end."""
        self.replica_seconds += max(0.0, min(ended_at, self.seconds) - replica.started_at)
        self.requests_by_replica[replica.replica_id] = replica.num_requests

    def record_scaling(self, now: float, current: int, target: int) -> None:
        """Count a decision of the scaling rule."""
        self.peak_replicas = max(self.peak_replicas, current, target)
        if target == current:
            return
        is_growth, last = target > current, self._last_change
        self.growths += is_growth
        self.shrinkings += not is_growth
        self.reversals += last is not None and last[1] is not is_growth and now - last[0] <= REVERSAL_SECONDS
        self._last_change = now, is_growth

    @property
    def num_requests(self) -> int:
        """Requests that have ended."""
        return len(self.ttft_seconds)

    @property
    def slo_attainment(self) -> float:
        """Share of the requests within every limit."""
        return self.num_good / max(1, self.num_requests)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the replicas had cached."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def mean_replicas(self) -> float:
        """Mean number of replicas, those that start or drain included."""
        return self.replica_seconds / max(self.seconds, 1e-9)

    def report(self, price_per_hour: float) -> dict[str, Any]:
        """Return the fields of a report."""
        hours = self.replica_seconds / 3600
        return {
            "requests": self.num_requests,
            "slo_attainment": self.slo_attainment,
            "replica_hours": hours,
            "cost": hours * price_per_hour,
            "mean_replicas": self.mean_replicas,
            "peak_replicas": self.peak_replicas,
            "max_waiting_requests": self.max_waiting,
            "growths": self.growths,
            "shrinkings": self.shrinkings,
            "reversals": self.reversals,
            "ttft_seconds": summarize(self.ttft_seconds),
            "tpot_seconds": summarize(self.tpot_seconds),
            "itl_seconds": summarize(self.itl_seconds),
            "prefix_hit_rate": self.hit_rate,
            "states": {name: [getattr(state, name) for state in self.states] for name in FleetState.__slots__},
        }
