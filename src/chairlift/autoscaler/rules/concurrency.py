"""ConcurrencyRule: the requests that the pool has to run at once, against those that one replica runs well."""

from typing import ClassVar

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.rules.base import RuleResult, has_no_source, with_missing


class ConcurrencyRule:
    """Follows the requests that run and wait; a full replica's running requests alone would say nothing of the need."""

    uses_short_window: ClassVar[bool] = False

    def __init__(self, *, ratio: float | None, concurrency: float | None, wait_seconds: float) -> None:
        """Take the target as requests of a replica, or as a share of what it reports as its limit."""
        self._ratio = ratio
        self._concurrency = concurrency
        self._wait_seconds = wait_seconds

    def evaluate(self, window: LoadWindow) -> RuleResult:
        """Return the need; without a ready replica it is known only while requests are held.

        A backlog may use replicas up to their limit, so that it adds nothing where the target leaves enough room. As
        long as the time that a request takes is unknown, all that wait count as if they were to run at once.
        """
        running = window.mean("running_requests")
        target, limit = self._target(window), window.capacity.max_running_requests
        demand, backlog = window.demand_requests(self._wait_seconds), window.backlog_requests(self._wait_seconds)
        numbers = {
            "running": None if running is None else running.total,
            "demand": demand,
            "backlog": backlog,
            "target": target,
            "service_s": window.capacity.service_seconds,
        }
        if target is None or (has_no_source(window, running) and not window.newest.pool_values["held_requests"]):
            return RuleResult(None, numbers)
        room = target if window.capacity.service_seconds is None else max(target, limit or target)
        need = max(demand / target, (demand + backlog) / room)
        num_missing = running.num_missing if running is not None else float(window.newest.num_ready)
        return RuleResult(with_missing(need, num_missing, window.newest.num_ready), numbers)

    def _target(self, window: LoadWindow) -> float | None:
        if self._concurrency is not None:
            return self._concurrency
        limit = window.capacity.max_running_requests
        return None if limit is None or self._ratio is None else limit * self._ratio
