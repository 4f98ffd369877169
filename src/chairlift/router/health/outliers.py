"""LatencyOutliers: finds replicas whose latency is a multiple of their pool's median."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chairlift.core.errors import ConfigError
from chairlift.router.health.health_state import TransitionCause

MAX_SAMPLES = 128
"""Number of samples kept for each replica, model and latency."""

LATENCY_NAMES = {
    TransitionCause.TIME_TO_FIRST_TOKEN: "time to first token",
    TransitionCause.INTER_TOKEN_LATENCY: "inter-token latency",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierConfig:
    """When a replica is a latency outlier. Raises ConfigError.

    Attributes:
        factor: a median above this multiple of the pool's median is an outlier; infinity turns the check off.
        min_samples: samples that a replica must have within the window to be compared.
        min_replicas: replicas with enough samples that a pool must have; with fewer than 3 no median is an outlier.
        window_seconds: age up to which samples count.
        interval_seconds: time between two checks.
        min_excess_seconds: by how much an outlier exceeds the pool's median at least; noise of fast replicas is less.
    """

    factor: float = 3.0
    min_samples: int = 20
    min_replicas: int = 3
    window_seconds: float = 60.0
    interval_seconds: float = 10.0
    min_excess_seconds: float = 0.02

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ConfigError(f"the factor of latency outliers must be above 1, got {self.factor:g}")
        if not 1 <= self.min_samples <= MAX_SAMPLES:
            raise ConfigError(
                f"min_samples of latency outliers must be between 1 and {MAX_SAMPLES}, got {self.min_samples}"
            )
        if self.min_replicas < 3:
            raise ConfigError(f"min_replicas of latency outliers must be at least 3, got {self.min_replicas}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOutlier:
    """A replica whose latency is too high, with the numbers.

    Attributes:
        replica_id: the replica's URL.
        model: model of the requests.
        cause: which latency it is.
        median_seconds: the replica's median.
        pool_median_seconds: median of the medians of the pool's replicas.
        factor: the limit.
    """

    replica_id: str
    model: str
    cause: TransitionCause
    median_seconds: float
    pool_median_seconds: float
    factor: float

    @property
    def reason(self) -> str:
        """The finding as a sentence."""
        return (
            f"the {LATENCY_NAMES[self.cause]} for {self.model or 'all models'} is {self.median_seconds * 1000:.1f} ms, "
            f"more than {self.factor:g} times the pool's median of {self.pool_median_seconds * 1000:.1f} ms"
        )


Samples = deque[tuple[float, float]]
"""(monotonic time, latency in seconds), oldest first."""


class LatencyOutliers:
    """Latencies of the replicas by model, and the outliers among them. Replicas of other models are never compared."""

    def __init__(self, config: OutlierConfig) -> None:
        self._config = config
        self._pools: dict[tuple[str, TransitionCause], dict[str, Samples]] = {}
        self._next_check = 0.0

    def record(self, replica_id: str, model: str, cause: TransitionCause, seconds: float, now: float) -> None:
        """Add a sample: the TTFT of a request, or the mean of its inter-token latencies."""
        pool = self._pools.setdefault((model, cause), {})
        samples = pool.get(replica_id)
        if samples is None:
            samples = pool[replica_id] = deque(maxlen=MAX_SAMPLES)
        samples.append((now, seconds))

    def forget(self, replica_id: str) -> None:
        """Drop the samples of a replica: it was ejected, restarted or removed."""
        for pool in self._pools.values():
            pool.pop(replica_id, None)

    def find(self, now: float) -> list[LatencyOutlier]:
        """Return the outliers, the slowest relative to its pool first; [] within interval_seconds of the last check."""
        if now < self._next_check:
            return []
        self._next_check = now + self._config.interval_seconds
        oldest = now - self._config.window_seconds
        outliers: list[LatencyOutlier] = []
        # Copies, since replicas and pools without a recent sample are deleted.
        for key, pool in list(self._pools.items()):
            for replica_id, samples in list(pool.items()):
                while samples and samples[0][0] < oldest:
                    samples.popleft()
                if not samples:
                    del pool[replica_id]
            if not pool:
                del self._pools[key]
            outliers += self._find_in_pool(*key, pool)
        return sorted(
            outliers, key=lambda each: (-each.median_seconds / max(each.pool_median_seconds, 1e-9), each.replica_id)
        )

    def _find_in_pool(
        self, model: str, cause: TransitionCause, pool: Mapping[str, Sequence[tuple[float, float]]]
    ) -> list[LatencyOutlier]:  # fmt: skip
        config = self._config
        medians = {
            replica_id: statistics.median(seconds for _, seconds in samples)
            for replica_id, samples in pool.items()
            if len(samples) >= config.min_samples
        }
        if len(medians) < config.min_replicas:
            return []
        # The median of medians: replicas with many samples weigh as much as others.
        pool_median = statistics.median(medians.values())
        limit = max(config.factor * pool_median, pool_median + config.min_excess_seconds)
        return [
            LatencyOutlier(
                replica_id=replica_id, model=model, cause=cause, median_seconds=median, pool_median_seconds=pool_median,
                factor=config.factor,
            )
            for replica_id, median in medians.items()
            if median > limit
        ]  # fmt: skip
