"""ExpectedWaitRule: the work that waits, in seconds of one replica, against the wait that requests may have."""

from typing import ClassVar

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.pool_load import PoolLoad
from chairlift.autoscaler.rules.base import RuleResult, has_no_source, with_missing

MIN_GROWTH = 1.2
"""A wait that stays above its target and does not shrink in time needs at least this many times the ready replicas."""


class ExpectedWaitRule:
    """Keeps the expected wait at its target.

    Below it the need is in proportion. Above it the replicas are full, so that the work arrives at the rate at which
    they work plus the rate at which the waiting work grows; and what waits is to be done within a time:

        need = ready + d(work) / dt + work / drain_seconds          work in seconds of one replica
    """

    uses_short_window: ClassVar[bool] = True

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need; work that waits is an integral already, so that the newest sample stands for the window."""
        wait = window.mean("wait_seconds")
        num_ready = window.newest.num_ready
        if has_no_source(window, wait) or wait is None:
            return RuleResult(None, {"wait_s": None})
        work = [
            (load.at_seconds, seconds, load) for load in window.loads if (seconds := _work(window, load)) is not None
        ]
        newest_at, newest, _ = work[-1]
        numbers: dict[str, float | None] = {"wait_s": newest / num_ready, "target_s": self._wait_seconds}
        need = min(newest / self._wait_seconds, float(num_ready))
        if all(seconds > self._wait_seconds * max(1, load.num_ready) for _, seconds, load in work):
            oldest_at, oldest, _ = work[0]
            slope = (newest - oldest) / (newest_at - oldest_at) if newest_at > oldest_at else 0.0
            flow = window.mean_ready() + slope + newest / window.capacity.drain_seconds
            numbers["work_slope"] = slope
            need = max(flow, num_ready * MIN_GROWTH) if flow > num_ready else float(num_ready)
        return RuleResult(with_missing(need, wait.num_missing, num_ready), numbers)


def _work(window: LoadWindow, load: PoolLoad) -> float | None:
    """Return the work that waits at a moment, held prompts included, in seconds of one replica."""
    quantity = load.quantities["wait_seconds"]
    if quantity is None:
        return None
    speed, held = window.capacity.prefill_tokens_per_second, load.pool_values["held_tokens"]
    return quantity.total + (held / speed if held and speed else 0.0)
