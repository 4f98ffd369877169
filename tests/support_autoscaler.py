"""Samples, loads and histories for tests of the autoscaler."""

from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.load_and_demand_window import LoadWindow, ReplicaCapacity
from chairlift.autoscaler.pool_load import pool_load
from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.core.load_report import ReplicaState

READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING
IDLE = {
    "waiting_requests": 0.0, "waiting_tokens": 0.0, "running_requests": 0.0, "expected_wait_seconds": 0.0,
    "kv_usage_ratio": 0.0, "max_running_requests": 10.0,
}  # fmt: skip
CAPACITY = ReplicaCapacity(max_running_requests=10.0, cold_start_seconds=60.0, drain_seconds=60.0)


def ready(replica_id: str, **load: Any) -> ReplicaSample:
    """Return a ready replica that reports no load but what is given."""
    return ReplicaSample(replica_id=replica_id, state=READY, **(IDLE | load))


def silent(replica_id: str, state: ReplicaState = READY, **values: Any) -> ReplicaSample:
    """Return a replica that reports nothing."""
    return ReplicaSample(replica_id=replica_id, state=state, **values)


def pool(at_seconds: float, *replicas: ReplicaSample, **values: Any) -> PoolSample:
    """Return a sample of a pool where nothing is held, unless it is given."""
    return PoolSample(at_seconds=at_seconds, replicas=replicas, **({"held_requests": 0.0} | values))


def replicas_of(count: int, **load: Any) -> list[ReplicaSample]:
    """Return ready replicas of equal load: r0, r1, ..."""
    return [ready(f"r{index}", **load) for index in range(count)]


def window_of(*samples: PoolSample, **capacity: Any) -> LoadWindow:
    """Return a window of samples; `capacity` changes CAPACITY."""
    values = {name: getattr(CAPACITY, name) for name in ReplicaCapacity.__slots__} | capacity
    return LoadWindow([pool_load(each) for each in samples], ReplicaCapacity(**values))


def history_of(config: AutoscalerConfig, samples: Iterable[PoolSample]) -> tuple[PoolHistory, Decision]:
    """Return the history after a decision on each sample, and the last decision; the pool does not follow them."""
    history = PoolHistory(config)
    decision = None
    for sample in samples:
        history.add(sample)
        decision = decide(history, config, sample.at_seconds)
        history.record(decision, is_applied=False)
    assert decision is not None
    return history, decision


def steady(count: int, seconds: float, *, start: float = 0.0, interval: float = 2.0, **load: Any) -> list[PoolSample]:
    """Return samples of a pool of equal replicas over a time."""
    num_samples = int(seconds / interval) + 1
    return [pool(start + index * interval, *replicas_of(count, **load)) for index in range(num_samples)]


class FakeSignals:
    """Numbers of queries that the test gives."""

    def __init__(self, values: Mapping[str, float | None]) -> None:
        self.values, self.is_closed = values, False

    async def read(self) -> Mapping[str, float | None]:
        return self.values

    async def close(self) -> None:
        self.is_closed = True
