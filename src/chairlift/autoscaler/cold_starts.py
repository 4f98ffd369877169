"""ColdStarts: learns how long a replica takes from its order until it serves."""

from collections import deque
from statistics import median

from chairlift.autoscaler.signals import PoolSample
from chairlift.core.load_report import ReplicaState

NUM_STARTS = 20
"""Number of starts that the median is of."""


class ColdStarts:
    """The durations of recent starts that were observed from STARTING to READY."""

    def __init__(self) -> None:
        self._starting: set[str] = set()
        self._seconds: deque[float] = deque(maxlen=NUM_STARTS)

    def add(self, sample: PoolSample) -> None:
        """Take note of the replicas that have become ready since the last sample."""
        for replica in sample.replicas:
            if replica.state is ReplicaState.READY and replica.replica_id in self._starting:
                self._seconds.append(replica.age_seconds)
        self._starting = {each.replica_id for each in sample.replicas if each.state is ReplicaState.STARTING}

    def median_seconds(self) -> float | None:
        """Return the median duration; None before the first start."""
        return median(self._seconds) if self._seconds else None
