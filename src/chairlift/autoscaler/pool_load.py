"""PoolLoad: the load of a pool at one moment, added up over its ready replicas, with a count of what is missing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.core.load_report import ReplicaState


@dataclass(frozen=True, slots=True)
class Quantity:
    """A sum over the ready replicas.

    Attributes:
        total: sum over those that report it.
        num_missing: ready replicas that do not.
    """

    total: float
    num_missing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """The load of a pool at one moment.

    Attributes:
        at_seconds: monotonic time.
        num_ready: ready replicas.
        num_starting: replicas that start.
        quantities: sums by name; None where no ready replica reports it, zero where no replica is ready.
        pool_values: numbers of the pool as a whole by name, external ones as "external:NAME"; None for a missing one.
    """

    at_seconds: float
    num_ready: int
    num_starting: int
    quantities: Mapping[str, Quantity | None]
    pool_values: Mapping[str, float | None]

    @property
    def is_idle(self) -> bool | None:
        """Whether the pool has no request at all; None if that is unknown."""
        if self.is_unused is True and self.pool_values["held_requests"] is None:
            return None
        return self.is_unused

    @property
    def is_unused(self) -> bool | None:
        """Whether no request is known: the replicas have none, and none is held where that is reported."""
        counts = [self.quantities["waiting_requests"], self.quantities["running_requests"]]
        totals = [None if each is None or each.num_missing else each.total for each in counts]
        elsewhere = self.pool_values["held_requests"], self.pool_values["requests_per_second"]
        if any(each is not None and each > 0 for each in (*totals, *elsewhere)):
            return False
        return None if None in totals else True


def pool_load(sample: PoolSample) -> PoolLoad:
    """Return the load of a sample; NaN and infinity count as missing."""
    ready = [each for each in sample.replicas if each.state is ReplicaState.READY]
    values = {
        "held_requests": sample.held_requests,
        "held_tokens": sample.held_tokens,
        "requests_per_second": sample.requests_per_second,
        "ttft_seconds": sample.ttft_seconds,
        "itl_seconds": sample.itl_seconds,
        **{f"external:{name}": value for name, value in sample.external.items()},
    }
    return PoolLoad(
        at_seconds=sample.at_seconds,
        num_ready=len(ready),
        num_starting=sample.num_in_state(ReplicaState.STARTING),
        quantities={name: _sum(ready, read) for name, read in READERS.items()},
        pool_values={name: finite(value) for name, value in values.items()},
    )


def finite(value: float | None) -> float | None:
    """Return the value, None if it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def _sum(ready: Sequence[ReplicaSample], read: Callable[[ReplicaSample], float | None]) -> Quantity | None:
    values = [value for each in ready if (value := finite(read(each))) is not None]
    if ready and not values:
        return None
    return Quantity(sum(values), len(ready) - len(values))


def _wait_seconds(replica: ReplicaSample) -> float | None:
    """Return the expected wait, or what its waiting tokens take at its speed if it reports no wait."""
    if (seconds := finite(replica.expected_wait_seconds)) is not None:
        return seconds
    tokens, speed = finite(replica.waiting_tokens), replica.prefill_tokens_per_second
    if tokens is None:
        return None
    if tokens == 0:
        return 0.0
    return tokens / speed if speed else None


READERS: Mapping[str, Callable[[ReplicaSample], float | None]] = {
    "waiting_requests": lambda replica: replica.waiting_requests,
    "running_requests": lambda replica: replica.running_requests,
    "wait_seconds": _wait_seconds,
    "kv_usage_ratio": lambda replica: replica.kv_usage_ratio,
    "cpu_ratio": lambda replica: replica.cpu_ratio,
    "memory_ratio": lambda replica: replica.memory_ratio,
    "gpu_ratio": lambda replica: replica.gpu_ratio,
    "max_running_requests": lambda replica: replica.max_running_requests or None,  # 0 while unknown
    "prefill_tokens_per_second": lambda replica: replica.prefill_tokens_per_second or None,
}
