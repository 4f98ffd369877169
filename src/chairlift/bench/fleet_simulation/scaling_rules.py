"""StaticRule, PlannedRule, AutoscalerRule: rules for the number of replicas in a simulated fleet."""

import math

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.signals import PoolSample
from chairlift.bench.fleet_simulation.base import ScalingTarget
from chairlift.bench.fleet_simulation.load.arrivals import Floats


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
