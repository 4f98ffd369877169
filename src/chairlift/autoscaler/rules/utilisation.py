"""UtilisationRule: the use of a resource of the replicas (KV cache, CPU, memory, GPU) against its target."""

from typing import ClassVar

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.rules.base import RuleResult, has_no_source, with_missing


class UtilisationRule:
    """Keeps the use of one resource at its target.

    A use ends at 1 however long the queue is. Above its target, the requests that wait too long therefore count as if
    they used as much as those that run.
    """

    uses_short_window: ClassVar[bool] = False

    def __init__(self, name: str, target: float, *, wait_seconds: float, counts_backlog: bool = True) -> None:
        """Take the quantity's name; `counts_backlog` is False for a resource that requests do not use up."""
        self._name = name
        self._target = target
        self._wait_seconds = wait_seconds
        self._counts_backlog = counts_backlog

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need."""
        usage = window.mean(self._name)
        if usage is None or has_no_source(window, usage):
            return RuleResult(None, {"usage": None, "target": self._target})
        num_ready = window.newest.num_ready
        num_reporting = max(window.mean_ready() - usage.num_missing, 1e-9)
        numbers: dict[str, float | None] = {"usage": usage.total / num_reporting, "target": self._target}
        need = usage.total / self._target
        if self._counts_backlog and usage.total > self._target * num_reporting:
            numbers["demand_factor"] = self._demand_factor(window)
            need *= self._demand_factor(window)
        return RuleResult(with_missing(need, usage.num_missing, num_ready), numbers)

    def _demand_factor(self, window: LoadWindow) -> float:
        running = window.mean("running_requests")
        backlog = window.backlog_requests(self._wait_seconds)
        return 1.0 + backlog / max(running.total if running is not None else 0.0, window.newest.num_ready, 1.0)
