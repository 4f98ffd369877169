"""Capacity: the highest rate at which one replica keeps the latency targets, and how many replicas a rate needs.

Each trial runs the real scheduler and KV cache in simulated time (simulation.py) on seeded Poisson arrivals; all trials
draw the same arrivals, stretched to their rate. Bisection finds the highest rate that keeps the targets. A rate needs
ceil(rate / that rate) replicas, so that a higher rate never needs fewer. A router that sends requests to the replica
with the least load does better than the random split that this assumes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.planning.simulated_replica import RequestLoad, SimulatedReplica
from chairlift.bench.report.percentiles import percentile
from chairlift.bench.simulation.simulation import SimResult
from chairlift.core.errors import ConfigError

SETTLING_SHARE = 0.4
"""Part of the requests at the start that are not judged, until the load is steady."""

RATE_PRECISION = 1.05
"""Ratio of the lowest rate that is too high to the highest that is not, at which the search ends."""

MAX_TRIALS = 16
REQUESTS = (40, 120, 800)
"""Requests of a trial: at least, enough for few that run at once, and at most."""

RUNNING_RATIO = 4
"""Requests of a trial for each that runs at once."""

MOST_STEPS = 20_000
"""Steps of a trial in which few requests run at once; they bound the duration of the simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a request has to keep.

    Attributes:
        ttft: most seconds to the first token.
        itl: most seconds between two tokens, as the mean of the request.
        share: part of the requests that must keep both.

    Raises ConfigError for a number out of range.
    """

    ttft: float
    itl: float
    share: float = 0.95

    def __post_init__(self) -> None:
        for option, value in (("ttft_ms", self.ttft), ("itl_ms", self.itl)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{option} must be a positive number, got {value * 1e3:g}", option=option)
        if not 0 < self.share <= 1:
            raise ConfigError(f"attainment must be above 0 and at most 1, got {self.share:g}", option="attainment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The simulation of one replica at a rate.

    Attributes:
        rate: requests a second of the replica.
        attainment: part of the judged requests that kept the targets.
        ttft: their seconds to the first token, ascending.
        itl: their mean seconds between tokens, ascending.
        busy: part of the time in which a step ran.
        mean_running: requests that ran at once while a step ran.
        kv_peak: most running requests as a share of those that the KV cache holds.
    """

    rate: float
    attainment: float
    ttft: Sequence[float]
    itl: Sequence[float]
    busy: float
    mean_running: float
    kv_peak: float

    def quantiles(self, samples: Sequence[float]) -> dict[str, float]:
        """Return median and 95th percentile of the samples, in milliseconds."""
        return {f"p{percent}": percentile(samples, percent) * 1e3 for percent in (50, 95)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """What one replica can do.

    Attributes:
        rate: highest requests a second that keep the targets.
        alone: a request without others.
        trials: number of simulations.
    """

    rate: float
    alone: Trial
    trials: int

    def replicas(self, rate: float) -> int:
        """Return how many replicas a rate needs."""
        return max(1, math.ceil(rate / self.rate - 1e-9))


def try_rate(
    replica: SimulatedReplica, load: RequestLoad, targets: Targets, rate: float, count: int | None = None
) -> Trial:
    """Simulate `count` requests, by default as many as needed, at a rate of the whole replica."""
    share = rate / replica.groups
    requests = num_requests(load, targets, share) if count is None else count
    result = replica.run(load.workload(requests, share))
    return _judged(replica, load, targets, rate, result, int(requests * SETTLING_SHARE))


def try_alone(replica: SimulatedReplica, load: RequestLoad, targets: Targets) -> Trial:
    """Simulate one request without others."""
    return _judged(replica, load, targets, 0.0, replica.run(load.workload(1, None)), 0)


def num_requests(load: RequestLoad, targets: Targets, rate: float) -> int:
    """Return how many requests a trial needs: a few times as many as run at once while the targets are kept."""
    running = max(1.0, rate * (targets.ttft + targets.itl * load.output))
    least, enough, most = REQUESTS
    floor = max(least, min(enough, int(MOST_STEPS * running / load.output)))
    return max(floor, min(most, int(RUNNING_RATIO * running)))


def find_capacity(
    replica: SimulatedReplica, load: RequestLoad, targets: Targets, *, count: int | None = None,
    least_rate: float = 0.0, try_at: Callable[[float], Trial] | None = None,
) -> CapacityEstimate | None:  # fmt: skip
    """Return the highest rate at which a replica keeps the targets, or None if it is below least_rate.

    Args:
        replica: the replica.
        load: the requests.
        targets: what they have to keep.
        count: requests of a trial; None chooses it.
        least_rate: the search ends when the rate turns out to be lower.
        try_at: replaces the simulation of a rate.

    Raises ConfigError when a request alone does not keep the targets, with the nearest that it keeps.
    """
    alone = try_alone(replica, load, targets)
    if alone.attainment < 1:
        raise unreachable_targets(alone, targets)
    run = try_at or (lambda rate: try_rate(replica, load, targets, rate, count))
    highest = replica.rate_limit(load) * replica.groups
    low, high, trials = 0.0, highest, 0
    while trials < MAX_TRIALS and (low == 0 or high / low > RATE_PRECISION):
        rate = (low + high) / 2 if low else high / 2
        trials += 1
        if run(rate).attainment >= targets.share:
            low = rate
        else:
            high = rate
        if high < least_rate:
            return None
    if low == 0:
        raise ConfigError(
            f"no number of replicas keeps the targets: {targets.share:.0%} of the requests would have to, and at "
            f"{high:.2g} requests/s a replica fewer do; raise --ttft-ms or --itl-ms, or lower --attainment",
            option="attainment",
        )
    return CapacityEstimate(rate=low, alone=alone, trials=trials)


def unreachable_targets(alone: Trial, targets: Targets) -> ConfigError:
    """Return the error for targets that a request alone does not keep."""
    ttft, itl = alone.ttft[0] * 1e3, alone.itl[0] * 1e3
    missed = []
    if alone.ttft[0] > targets.ttft:
        missed.append(f"its first token takes {ttft:.4g} ms, the target is {targets.ttft * 1e3:g} ms")
    if alone.itl[0] > targets.itl:
        missed.append(f"a token takes {itl:.4g} ms, the target is {targets.itl * 1e3:g} ms")
    nearest = f"--ttft-ms {math.ceil(max(ttft, targets.ttft * 1e3))} --itl-ms {math.ceil(max(itl, targets.itl * 1e3))}"
    return ConfigError(
        "no number of replicas reaches the targets, because a request without others does not: "
        f"{' and '.join(missed)}; the nearest that can be reached is {nearest}, more devices for each replica or "
        "faster ones reach more",
        option="ttft_ms" if alone.ttft[0] > targets.ttft else "itl_ms", ttft_ms=ttft, itl_ms=itl,
    )  # fmt: skip


def _judged(
    replica: SimulatedReplica, load: RequestLoad, targets: Targets, rate: float, result: SimResult, skipped: int
) -> Trial:
    records = result.records[skipped:]
    ttft, itl = [record.stamps[0] - record.item.at for record in records], [_mean_gap(record) for record in records]
    kept = sum(first <= targets.ttft and gap <= targets.itl for first, gap in zip(ttft, itl, strict=True))
    begin = records[0].item.at
    busy = sum(seconds for seconds, end in zip(result.step_seconds, result.step_ends, strict=True) if end > begin)
    return Trial(
        rate=rate, attainment=kept / len(records), ttft=sorted(ttft), itl=sorted(itl),
        busy=min(1.0, busy / max(result.seconds - begin, 1e-12)), mean_running=result.mean_running * replica.groups,
        kv_peak=min(1.0, result.peak_running * load.tokens / (replica.num_blocks * replica.block_size)),
    )  # fmt: skip


def _mean_gap(record: RequestRecord) -> float:
    """Return the mean seconds between the tokens of a request; 0 for one token."""
    return (record.stamps[-1] - record.stamps[0]) / max(1, record.output_tokens - 1)
