"""ExternalRule: a metric from outside, a total or an average over the replicas, against its target."""

from typing import ClassVar

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.rules.base import RuleResult


class ExternalRule:
    """Keeps a metric at its target."""

    uses_short_window: ClassVar[bool] = False

    def __init__(self, name: str, target: float, *, is_ratio: bool) -> None:
        """Take the metric's name in the samples; `is_ratio` is True for an average over the replicas."""
        self._name = name
        self._target = target
        self._is_ratio = is_ratio

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need."""
        value = window.pool_mean(f"external:{self._name}")
        numbers = {"value": value, "target": self._target}
        if value is None or (self._is_ratio and window.newest.num_ready == 0):
            return RuleResult(None, numbers)
        need = value / self._target * (window.mean_ready() if self._is_ratio else 1.0)
        return RuleResult(max(0.0, need), numbers)
