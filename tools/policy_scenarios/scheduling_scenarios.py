"""Scenarios: measures the guarantees of the scheduling policies in the simulator, with fixed seeds.

Every function is one scenario: it makes its load, simulates it with a fixed step time model and returns the results.
tests/policy_scenarios/test_scheduling_scenarios.py has the bounds.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from chairlift.bench.report.percentiles import percentile
from chairlift.bench.simulation.sim_step_model import SMALL_CPU
from chairlift.bench.simulation.simulation import SimMachine, SimResult, simulate
from chairlift.bench.workload.generators import between
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.engine.config import SchedulerConfig
from policy_scenarios.latency_and_memory_scenarios import (
    ITL_CASES,
    Numbers,
    itl_scenario,
    paged_against_preallocated,
    small_pool,
)
from policy_scenarios.scenario_loads import LARGE_GPU, Stream, interarrival_seconds, together

# -- fair ----------------------------------------------------------------------------------------------------------


def fair_service(policy: str, weights: Mapping[str, float] | None = None, seed: int = 0) -> Numbers:
    """Measure the service of two tenants whose loads are 10:1, the smaller one above half capacity.

    Returns the service of each and their ratio, small to big. Service is prompt tokens scheduled and output tokens
    delivered in the time in which both were always backlogged.
    """
    big = Stream(60.0, (32, 96), (16, 48), tenant="big")
    small = Stream(3.0, (64, 192), (32, 96), tenant="small")
    seconds, tenants = 60.0, ("big", "small")
    workload = together([big, small], seconds, seed)
    served: list[tuple[float, str, int]] = []

    def on_output(now: float, index: int, tokens: int) -> None:
        served.append((now, workload.items[index].tenant, tokens))

    config = SchedulerConfig(
        scheduling_policy=policy, max_running_requests=32, max_batch_tokens=512, tenant_weights=dict(weights or {})
    )
    result = simulate(workload, config, SimMachine(step_model=SMALL_CPU), on_output=on_output)
    begin, end = _both_backlogged(result, tenants, seconds)
    service = dict.fromkeys(tenants, 0.0)
    for now, tenant, tokens in served:
        service[tenant] += tokens if begin <= now < end else 0
    for record, scheduled_at in zip(result.records, result.first_scheduled, strict=True):
        if scheduled_at is not None and begin <= scheduled_at < end:
            service[record.item.tenant] += len(record.item.prompt_token_ids)
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


def _both_backlogged(result: SimResult, tenants: Sequence[str], until: float) -> tuple[float, float]:
    """Return the longest time span before `until` in which every tenant had waiting requests."""
    moments = np.linspace(0.0, until, 1201)
    busy = np.ones(len(moments), bool)
    for tenant in tenants:
        waiting = np.zeros(len(moments), int)
        for record, queued, scheduled_at in zip(result.records, result.queued, result.first_scheduled, strict=True):
            if record.item.tenant == tenant:
                waiting += (queued <= moments) & (moments < (until if scheduled_at is None else scheduled_at))
        busy &= waiting > 0
    best, begin = (0, 0), 0
    for index, each in enumerate([*busy.tolist(), False]):
        if not each:
            best = max(best, (begin, index - 1), key=lambda span: span[1] - span[0])
            begin = index + 1
    return float(moments[best[0]]), float(moments[best[1]])


# -- priority ------------------------------------------------------------------------------------------------------


def ageing_bound(ageing: float, required_ageing: float | None = None, seed: int = 0) -> Numbers:
    """Measure priority ageing while urgent requests alone overload the machine for two minutes.

    The bound: no request starts after another one that is more urgent by d steps and arrived at least d * ageing
    seconds later. It must be broken when it is checked with a smaller ageing than the run used. Returns how often it
    was broken, the smallest margin, and the longest wait of each priority.
    """
    required_ageing = ageing if required_ageing is None else required_ageing
    streams = [
        Stream(12.0, (32, 96), (16, 64), priority=0),
        Stream(0.5, (32, 96), (16, 64), priority=1),
        Stream(0.5, (32, 96), (16, 64), priority=4),
    ]
    workload = together(streams, 120.0, seed)
    config = SchedulerConfig(scheduling_policy="priority", priority_ageing=ageing, max_running_requests=16)
    result = simulate(workload, config, SimMachine(step_model=SMALL_CPU))
    priority = np.array([record.item.priority for record in result.records])
    queued, scheduled_at = (
        np.array(result.queued),
        np.array([float("inf") if at is None else at for at in result.first_scheduled]),
    )
    # [later and more urgent, earlier and less urgent]
    ahead = (priority[:, None] < priority[None, :]) & (scheduled_at[:, None] < scheduled_at[None, :])
    ahead &= queued[:, None] > queued[None, :]
    excess = queued[:, None] - queued[None, :] - (priority[None, :] - priority[:, None]) * required_ageing
    worst = float(excess[ahead].max()) if ahead.any() else float("-inf")
    waits = {name: max(scheduled_at[priority == name] - queued[priority == name]) for name in (0, 1, 4)}
    return {
        "broken": float(((excess >= 1e-9) & ahead).sum()),
        "nearest_seconds": -worst,
        "overtakings": float(ahead.sum()),
        "preemptions": float(result.preemptions),
        "unfinished": float(sum(not record.is_complete for record in result.records)),
        **{f"longest_wait_of_priority_{name}": float(wait) for name, wait in waits.items()},
        "longest_latency": max((record.ended or 0.0) - record.item.at for record in result.records),
    }


# -- cache_aware ---------------------------------------------------------------------------------------------------


def prefix_hits(policy: str, hot: float = 0.0, seed: int = 0) -> Numbers:
    """Measure prefix cache hits of 48 groups in random order; a third of them fit into the cache.

    Each request begins with its group's 512 tokens. `hot` is the share of requests that go to the first group in any
    case; a large share can starve the other groups. Returns the hit rate, the longest wait and the total seconds.
    """
    rng = Random(f"prefix hits {seed}")
    groups = [tuple(between(rng, 0, 9_999) for _ in range(512)) for _ in range(48)]
    items, at = [], 0.0
    for _ in range(800):
        own = tuple(between(rng, 0, 9_999) for _ in range(between(rng, 16, 48)))
        group = groups[0 if rng.random() < hot else between(rng, 0, len(groups) - 1)]
        items.append(WorkloadRequest(at=at, prompt_token_ids=group + own, output_tokens=between(rng, 8, 48)))
        at += interarrival_seconds(rng, 4.0 / (1 - hot / 2))
    config = SchedulerConfig(scheduling_policy=policy, max_running_requests=16, max_batch_tokens=1024)
    machine = SimMachine(step_model=SMALL_CPU, num_blocks=512)
    result = simulate(Workload(name="groups", seed=seed, items=tuple(items)), config, machine)
    ordered = sorted(result.waits)
    return {
        "hit_rate": result.hit_rate,
        "longest_wait": ordered[-1],
        "p50_wait": percentile(ordered, 50),
        "seconds": result.seconds,
        "preemptions": float(result.preemptions),
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
        "ageing 100,000 s, held to 5 s": ageing_bound(100_000.0, required_ageing=5.0),
    },
    "cache_aware": lambda: {
        f"{policy}, hot {hot:g}": prefix_hits(policy, hot)
        for hot in (0.0, 0.5, 0.8) for policy in ("cache_aware", "fifo")
    },
    "target_itl_ms": lambda: {name: itl_scenario(case) for name, case in ITL_CASES.items()},
    "small_pool": lambda: {
        f"{load}, {name}": small_pool(times, load)
        for name, times in (("small_cpu", SMALL_CPU), ("large_gpu", LARGE_GPU)) for load in ("broadtail", "growing")
    },
    "paged": lambda: {
        f"max_model_len {length}": paged_against_preallocated(length) for length in (640, 1024, 2048)
    },
}  # fmt: skip
"""Scenarios by name; each returns the numbers of its arms."""
