"""LoadWindow: averages and slopes of a pool's load over a time, and the demand that follows from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.autoscaler.pool_load import PoolLoad, Quantity

CERTAINTY_DEVIATIONS = 2.0
"""A number of arrivals proves a rate that is this many standard deviations (of a Poisson process) lower."""

MAX_CALM_SLOPE = 0.1
"""A pool is calm while the open requests change by at most this share of the requests that arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCapacity:
    """What one replica can do, as measured so far; None where it has never been reported.

    Attributes:
        max_running_requests: requests that it runs at once at most.
        prefill_tokens_per_second: its speed of prompt processing.
        cold_start_seconds: time from its order until it serves.
        drain_seconds: time within which a backlog is to be done.
        service_seconds: mean time from a request's arrival to its end while the pool was calm.
    """

    max_running_requests: float | None = None
    prefill_tokens_per_second: float | None = None
    cold_start_seconds: float
    drain_seconds: float
    service_seconds: float | None = None


class LoadWindow:
    """The loads of a time, oldest first; there is at least one.

    Attributes:
        loads: the loads.
        newest: the newest one.
        capacity: what one replica can do.
    """

    def __init__(self, loads: Sequence[PoolLoad], capacity: ReplicaCapacity) -> None:
        self.loads = loads
        self.newest = loads[-1]
        self.capacity = capacity
        self._means: dict[str, Quantity | None] = {}
        self._pool_means: dict[str, float | None] = {}

    def mean_ready(self) -> float:
        """Return the mean number of ready replicas."""
        return sum(each.num_ready for each in self.loads) / len(self.loads)

    def mean(self, name: str) -> Quantity | None:
        """Return the mean of a quantity over the samples that have it; None if none has."""
        if name not in self._means:
            values = [value for each in self.loads if (value := each.quantities[name]) is not None]
            count = len(values)
            self._means[name] = (
                Quantity(
                    sum([each.total for each in values]) / count, sum([each.num_missing for each in values]) / count
                )
                if values
                else None
            )
        return self._means[name]

    def pool_mean(self, name: str) -> float | None:
        """Return the mean of a number of the pool over the samples that have it; None if none has."""
        if name not in self._pool_means:
            values = [value for each in self.loads if (value := each.pool_values.get(name)) is not None]
            self._pool_means[name] = sum(values) / len(values) if values else None
        return self._pool_means[name]

    def open_requests(self) -> Quantity | None:
        """Return the mean of requests that wait, are held or run."""
        waiting, running = self.mean("waiting_requests"), self.mean("running_requests")
        if waiting is None or running is None:
            return None
        held = self.pool_mean("held_requests") or 0.0
        return Quantity(waiting.total + running.total + held, max(waiting.num_missing, running.num_missing))

    def calm_service_seconds(self, wait_seconds: float) -> float | None:
        """Return the mean time from a request's arrival to its end, by Little's law; None unless the pool is calm.

        It is calm while the number of open requests hardly changes and no request waits longer than `wait_seconds`.
        """
        rate, count = self.pool_mean("requests_per_second"), self.open_requests()
        counts = [(each.at_seconds, number) for each in self.loads if (number := _num_open(each)) is not None]
        if not rate or count is None or not count.total or len(counts) < 2:
            return None
        (first_at, first), (last_at, last) = counts[0], counts[-1]
        # Little's law holds only while as many requests end as arrive.
        is_changing = abs(last - first) > MAX_CALM_SLOPE * rate * (last_at - first_at)
        return None if is_changing or self._has_backlog(wait_seconds) else count.total / rate

    def backlog_requests(self, wait_seconds: float) -> float:
        """Return the requests that wait longer than `wait_seconds`, as requests that run at once.

        Those that wait less are on their way through a replica. The others are to be done within `drain_seconds` of
        the capacity, so that each needs a place for its share of this time.
        """
        excess = max(0.0, self._num_waiting() - self._num_waiting_normally(wait_seconds))
        seconds = self.capacity.service_seconds
        return excess * (min(1.0, seconds / self.capacity.drain_seconds) if seconds is not None else 1.0)

    def demand_requests(self, wait_seconds: float) -> float:
        """Return the requests that the pool has to run at once, without its backlog; no replica's limit caps it.

        It is what runs and waits, or the rate of arrivals times the time that a request takes in a calm pool where
        that is more: after a burst what runs is still to rise, and where requests wait too long the replicas are full.
        """
        running = self.mean("running_requests")
        num_running = running.total if running is not None else 0.0
        rate, seconds = self.pool_mean("requests_per_second"), self.capacity.service_seconds
        if rate is None or seconds is None:
            return num_running + min(self._num_waiting(), self._num_waiting_normally(wait_seconds))
        if self._has_backlog(wait_seconds):
            return max(num_running, rate * seconds)
        return max(num_running + self._num_waiting(), self._certain_rate(rate) * seconds)

    def _certain_rate(self, rate: float) -> float:
        """Return the rate that few arrivals in the window prove, so that chance does not look like a burst."""
        elapsed = self.newest.at_seconds - self.loads[0].at_seconds
        if elapsed <= 0:
            return 0.0
        # Arrivals are a Poisson process, whose standard deviation is the root of their number.
        count = rate * elapsed
        return max(0.0, count - CERTAINTY_DEVIATIONS * math.sqrt(count)) / elapsed

    def _has_backlog(self, wait_seconds: float) -> bool:
        return self._num_waiting() > self._num_waiting_normally(wait_seconds)

    def _num_waiting(self) -> float:
        waiting = self.mean("waiting_requests")
        held = self.newest.pool_values["held_requests"] or 0.0  # they wait now or not: a mean would lag behind them
        return (waiting.total if waiting is not None else 0.0) + held

    def _num_waiting_normally(self, wait_seconds: float) -> float:
        return (self.pool_mean("requests_per_second") or 0.0) * wait_seconds


def _num_open(load: PoolLoad) -> float | None:
    waiting, running = load.quantities["waiting_requests"], load.quantities["running_requests"]
    if waiting is None or running is None:
        return None
    return waiting.total + running.total + (load.pool_values["held_requests"] or 0.0)
