"""ColdStarts: the seconds that recent replicas took to start."""

from collections import deque
from statistics import median

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.core.load_report import ReplicaState

NUM_STARTS = 20
"""Number of cold starts that the median is of."""

MAX_FIRST_AGE_SECONDS = 30.0
"""A replica that is older when it is first seen was started before, and only looks as if it started."""


class ColdStarts:
    """How long recent replicas took from their order until they served, as observed from STARTING to READY."""

    def __init__(self) -> None:
        self._is_first_start: dict[str, bool] = {}
        self._seconds: deque[float] = deque(maxlen=NUM_STARTS)

    def add(self, sample: PoolSample) -> None:
        """Take note of the replicas that have become ready since the last sample.

        Only the first start of a replica counts: one that serves, restarts its engine and serves again has an age that
        says nothing.
        """
        is_first_start = {}
        for replica in sample.replicas:
            is_starting = replica.state is ReplicaState.STARTING
            is_new = is_starting and replica.age_seconds <= MAX_FIRST_AGE_SECONDS
            is_first = self._is_first_start.get(replica.replica_id, is_new)
            if is_first and replica.state is ReplicaState.READY:
                self._seconds.append(replica.age_seconds)
            is_first_start[replica.replica_id] = is_first and is_starting
        self._is_first_start = is_first_start

    def median_seconds(self) -> float | None:
        """Return the median duration; None before the first start."""
        return median(self._seconds) if self._seconds else None
