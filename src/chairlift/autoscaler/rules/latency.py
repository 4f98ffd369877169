"""LatencyRule: a quantile of a latency of recent requests (TTFT, ITL) against its SLO."""

from typing import ClassVar

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.rules.base import RuleResult

MAX_FACTOR = 2.0
"""One decision at most doubles or halves the ready replicas, since a latency is far from proportional to the load."""


class LatencyRule:
    """Keeps a latency at its SLO. A latency describes the pool that served it, not replicas that came since."""

    uses_short_window: ClassVar[bool] = False

    def __init__(self, name: str, slo_seconds: float, *, min_factor: float) -> None:
        """Take the name of the quantile in the samples.

        `min_factor` times the ready replicas is the least need, however low the latency is. It must be low enough that
        half of the replicas hold this need with headroom, or else the pool would never shrink from two to one.
        """
        self._name = name
        self._slo_seconds, self._min_factor = slo_seconds, min_factor

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need; a pool without any request needs nothing, and its latency is not missing."""
        seconds = window.pool_mean(self._name)
        numbers = {"seconds": seconds, "slo_s": self._slo_seconds}
        if seconds is None:
            return RuleResult(0.0 if window.newest.is_unused else None, numbers)
        ratio = seconds / self._slo_seconds
        num_ready = window.newest.num_ready
        if ratio > 1:
            num_ready = min(each.num_ready for each in window.loads)
        return RuleResult(num_ready * min(max(ratio, self._min_factor), MAX_FACTOR), numbers)
