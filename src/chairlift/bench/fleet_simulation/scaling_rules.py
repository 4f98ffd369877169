"""StaticRule, PlannedRule, AutoscalerRule, HpaRule: rules for the number of replicas in a simulated fleet."""

import math
from collections import deque

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.bench.fleet_simulation.load.arrivals import Floats
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ScalingTarget
from chairlift.core.load_report import ReplicaState


class StaticRule:
    """Always the same number of replicas."""

    interval_seconds = 3600.0
    needs_sample = False

    def __init__(self, num_replicas: int) -> None:
        self._target = ScalingTarget(num_replicas)

    def decide(self, sample: PoolSample) -> ScalingTarget:
        """Return the number."""
        return self._target


class PlannedRule:
    """The replicas that a plan has for each window of time, started one cold start ahead."""

    needs_sample = False

    def __init__(self, plan: Floats, window_seconds: float, cold_start_seconds: float) -> None:
        self.interval_seconds = min(window_seconds, 5.0)
        self._plan, self._window = plan, window_seconds
        self._ahead = cold_start_seconds + self.interval_seconds

    def decide(self, sample: PoolSample) -> ScalingTarget:
        """Return the most of the window that runs and of those that begin within a cold start."""
        first = int(sample.at_seconds // self._window)
        last = int((sample.at_seconds + self._ahead) // self._window)
        return ScalingTarget(math.ceil(max(self._plan[first : last + 1], default=0.0)))


class AutoscalerRule:
    """The production autoscaler."""

    needs_sample = True

    def __init__(self, config: AutoscalerConfig) -> None:
        self.interval_seconds = config.interval_seconds
        self._config, self._history = config, PoolHistory(config)

    def decide(self, sample: PoolSample) -> ScalingTarget:
        """Return the target of `decide`."""
        self._history.add(sample)
        decision = decide(self._history, self._config, sample.at_seconds)
        self._history.record(decision)
        return ScalingTarget(decision.target, decision.remove)


SYNC_SECONDS = 15.0
TOLERANCE = 0.1
STABILISATION_SECONDS = 300.0
GROWTH_REPLICAS, GROWTH_RATIO = 4, 1.0
"""Most replicas, or share of them, by which the pool grows in one period of SYNC_SECONDS; the larger one holds."""


class HpaRule:
    """What Kubernetes' HorizontalPodAutoscaler with its defaults would do for a target of CPU utilisation.

    Every 15 s: desired = ceil(current * utilisation / target), none within a tolerance of 10 %. Replicas that start
    count as unused when the pool is to grow. It grows by at most the larger of 4 replicas and 100 % in 15 s, and
    shrinks to the highest desired number of the last 300 s.
    """

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
