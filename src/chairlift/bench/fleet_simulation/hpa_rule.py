"""HpaRule: what Kubernetes' HorizontalPodAutoscaler with its defaults would do for a target of CPU utilisation.

Every 15 s: desired = ceil(current * utilisation / target), none within a tolerance of 10 %. Replicas that start count
as unused when the pool is to grow. It grows by at most the larger of 4 replicas and 100 % in 15 s, and shrinks to the
highest desired number of the last 300 s.
"""

import math
from collections import deque

from chairlift.autoscaler.signals import PoolSample
from chairlift.bench.fleet_simulation.base import ScalingTarget
from chairlift.core.load_report import ReplicaState

SYNC_SECONDS = 15.0
TOLERANCE = 0.1
STABILISATION_SECONDS = 300.0
GROWTH_REPLICAS, GROWTH_RATIO = 4, 1.0
"""Most replicas, or share of them, by which the pool grows in one period of SYNC_SECONDS; the larger one holds."""


class HpaRule:
    """A target of CPU utilisation, with the rules and defaults of the HorizontalPodAutoscaler."""

    interval_seconds = SYNC_SECONDS
    needs_sample = True

    def __init__(self, target_cpu_ratio: float, min_replicas: int, max_replicas: int) -> None:
        self._target, self._least, self._most = target_cpu_ratio, max(1, min_replicas), max_replicas
        self._recommended: deque[tuple[float, int]] = deque()
        self._synced_at = -math.inf

    def decide(self, sample: PoolSample) -> ScalingTarget:
        """Return the desired number, limited in growth and stabilised against shrinking."""
        now, current = sample.at_seconds, sample.num_in_state(ReplicaState.STARTING, ReplicaState.READY)
        if now < self._synced_at + SYNC_SECONDS:  # a held request does not wake this autoscaler
            return ScalingTarget(current)
        self._synced_at = now
        self._recommended.append((now, self._desired(sample, current)))
        while self._recommended[0][0] <= now - STABILISATION_SECONDS:
            self._recommended.popleft()
        target = self._recommended[-1][1]
        if target < current:
            target = min(current, max(number for _, number in self._recommended))
        target = min(target, max(current + GROWTH_REPLICAS, math.floor(current * (1 + GROWTH_RATIO))))
        return ScalingTarget(min(max(target, self._least), self._most))

    def _desired(self, sample: PoolSample, current: int) -> int:
        used = [each.cpu_ratio or 0.0 for each in sample.replicas if each.state is ReplicaState.READY]
        num_starting = sample.num_in_state(ReplicaState.STARTING)
        if not used:
            return current
        ratio = sum(used) / len(used) / self._target
        if num_starting and ratio > 1:
            used += [0.0] * num_starting
            ratio = sum(used) / len(used) / self._target
            if ratio < 1:
                return current
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(round(ratio * len(used), 6))
