"""Scenarios: what the policies promise, as numbers from the simulator with fixed seeds.

Every function is one scenario: it makes its load, runs it on a machine whose times are written down here, and returns
what it saw. tests/bench/simulation/test_scenarios.py holds the bounds.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from chairlift.bench.report.percentiles import percentile
from chairlift.bench.simulation.scenario_loads import LARGE_GPU, SMALL_CPU, Stream, interarrival_seconds, together
from chairlift.bench.simulation.simulation import SimMachine, SimResult, simulate
from chairlift.bench.simulation.step_scenarios import (
    STATIONS,
    Numbers,
    itl_scenario,
    paged_against_preallocated,
    small_pool,
)
from chairlift.bench.workload.generators import between
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.engine.config import SchedulerConfig

# -- fair ----------------------------------------------------------------------------------------------------------


def fair_service(policy: str, weights: Mapping[str, float] | None = None, seed: int = 0) -> Numbers:
    """Two tenants offer 10:1 tokens, the smaller one more than half of what the machine can do.

    Returns the service of each (prompt tokens let in and output tokens delivered in the time in which both were
    backlogged all along) and their ratio, small to big.
    """
    big = Stream(60.0, (32, 96), (16, 48), tenant="big")
    small = Stream(3.0, (64, 192), (32, 96), tenant="small")
    seconds, tenants = 60.0, ("big", "small")
    workload = together([big, small], seconds, seed)
    served: list[tuple[float, str, int]] = []

    def watch(now: float, index: int, tokens: int) -> None:
        served.append((now, workload.items[index].tenant, tokens))

    config = SchedulerConfig(
        policy=policy, max_running_requests=32, max_batch_tokens=512, tenant_weights=dict(weights or {})
    )
    seen = simulate(workload, config, SimMachine(step_model=SMALL_CPU), watch=watch)
    begin, end = _both_backlogged(seen, tenants, seconds)
    service = dict.fromkeys(tenants, 0.0)
    for now, tenant, tokens in served:
        service[tenant] += tokens if begin <= now < end else 0
    for ride, boarded in zip(seen.rides, seen.first_scheduled, strict=True):
        if boarded is not None and begin <= boarded < end:
            service[ride.item.tenant] += len(ride.item.prompt_token_ids)
    offered = {name: sum(_size(item) for item in workload.items if item.tenant == name) for name in tenants}
    return {
        "offered_ratio": offered["small"] / offered["big"],
        "small_tokens": service["small"],
        "big_tokens": service["big"],
        "ratio": service["small"] / service["big"],
        "backlogged_seconds": end - begin,
    }


def _size(item: WorkloadRequest) -> int:
    return len(item.prompt_token_ids) + item.output_tokens


def _both_backlogged(seen: SimResult, tenants: Sequence[str], until: float) -> tuple[float, float]:
    """The longest span of time before `until` in which somebody of every tenant waited at every moment."""
    moments = np.linspace(0.0, until, 1201)
    busy = np.ones(len(moments), bool)
    for tenant in tenants:
        waiting = np.zeros(len(moments), int)
        for ride, queued, boarded in zip(seen.rides, seen.queued, seen.first_scheduled, strict=True):
            if ride.item.tenant == tenant:
                waiting += (queued <= moments) & (moments < (until if boarded is None else boarded))
        busy &= waiting > 0
    best, begin = (0, 0), 0
    for index, each in enumerate([*busy.tolist(), False]):
        if not each:
            best = max(best, (begin, index - 1), key=lambda span: span[1] - span[0])
            begin = index + 1
    return float(moments[best[0]]), float(moments[best[1]])


# -- priority ------------------------------------------------------------------------------------------------------


def ageing_bound(ageing: float, held_to: float | None = None, seed: int = 0) -> Numbers:
    """Urgent requests alone overload the machine for two minutes; some come with lower priorities.

    The bound: nobody boards after another one that is more urgent by d steps and came at least d * ageing seconds
    later. (Held to another ageing than the one it ran with, it must break.) Returns how often it was broken, how near
    it came, and the longest wait of each priority.
    """
    held_to = ageing if held_to is None else held_to
    streams = [
        Stream(12.0, (32, 96), (16, 64), priority=0),
        Stream(0.5, (32, 96), (16, 64), priority=1),
        Stream(0.5, (32, 96), (16, 64), priority=4),
    ]
    workload = together(streams, 120.0, seed)
    config = SchedulerConfig(policy="priority", priority_ageing=ageing, max_running_requests=16)
    seen = simulate(workload, config, SimMachine(step_model=SMALL_CPU))
    priority = np.array([ride.item.priority for ride in seen.rides])
    queued, boarded = (
        np.array(seen.queued),
        np.array([float("inf") if at is None else at for at in seen.first_scheduled]),
    )
    # [later and more urgent, earlier and less urgent]
    ahead = (priority[:, None] < priority[None, :]) & (boarded[:, None] < boarded[None, :])
    ahead &= queued[:, None] > queued[None, :]
    excess = queued[:, None] - queued[None, :] - (priority[None, :] - priority[:, None]) * held_to
    worst = float(excess[ahead].max()) if ahead.any() else float("-inf")
    waits = {name: max(boarded[priority == name] - queued[priority == name]) for name in (0, 1, 4)}
    return {
        "broken": float(((excess >= 1e-9) & ahead).sum()),
        "nearest_seconds": -worst,
        "overtakings": float(ahead.sum()),
        "preemptions": float(seen.preemptions),
        "unfinished": float(sum(not ride.is_whole for ride in seen.rides)),
        **{f"longest_wait_of_priority_{name}": float(wait) for name, wait in waits.items()},
        "longest_latency": max((ride.ended or 0.0) - ride.item.at for ride in seen.rides),
    }


# -- cache_aware ---------------------------------------------------------------------------------------------------


def prefix_hits(policy: str, hot: float = 0.0, seed: int = 0) -> Numbers:
    """Requests of 48 groups in random order, each with the 512 tokens of its group; the cache has room for a third.

    `hot` is the share of all requests that belong to the first group whatever else is drawn: with much of it, those of
    the other groups can starve. Returns the hit rate, the longest wait and the seconds that the whole load took.
    """
    rng = Random(f"prefix hits {seed}")
    groups = [tuple(between(rng, 0, 9_999) for _ in range(512)) for _ in range(48)]
    items, at = [], 0.0
    for _ in range(800):
        own = tuple(between(rng, 0, 9_999) for _ in range(between(rng, 16, 48)))
        group = groups[0 if rng.random() < hot else between(rng, 0, len(groups) - 1)]
        items.append(WorkloadRequest(at=at, prompt_token_ids=group + own, output_tokens=between(rng, 8, 48)))
        at += interarrival_seconds(rng, 4.0 / (1 - hot / 2))
    config = SchedulerConfig(policy=policy, max_running_requests=16, max_batch_tokens=1024)
    machine = SimMachine(step_model=SMALL_CPU, num_blocks=512)
    seen = simulate(Workload(name="groups", seed=seed, items=tuple(items)), config, machine)
    ordered = sorted(seen.waits)
    return {
        "hit_rate": seen.hit_rate,
        "longest_wait": ordered[-1],
        "p50_wait": percentile(ordered, 50),
        "seconds": seen.seconds,
        "preemptions": float(seen.preemptions),
    }


# -- all of them -----------------------------------------------------------------------------------------------------

SCENARIOS: Mapping[str, Callable[[], dict[str, Numbers]]] = {
    "fair": lambda: {
        "fair": fair_service("fair"),
        "fair, small has weight 2": fair_service("fair", {"small": 2.0}),
        "fifo": fair_service("fifo"),
    },
    "priority": lambda: {
        "ageing 5 s": ageing_bound(5.0),
        "ageing 100,000 s, held to 5 s": ageing_bound(100_000.0, held_to=5.0),
    },
    "cache_aware": lambda: {
        f"{policy}, hot {hot:g}": prefix_hits(policy, hot)
        for hot in (0.0, 0.5, 0.8) for policy in ("cache_aware", "fifo")
    },
    "target_itl_ms": lambda: {name: itl_scenario(station) for name, station in STATIONS.items()},
    "small_pool": lambda: {
        f"{load}, {name}": small_pool(times, load)
        for name, times in (("small_cpu", SMALL_CPU), ("large_gpu", LARGE_GPU)) for load in ("broadtail", "growing")
    },
    "paged": lambda: {
        f"max_model_len {length}": paged_against_preallocated(length) for length in (640, 1024, 2048)
    },
}  # fmt: skip
"""By name; each returns its arms' numbers."""
