"""PoolHistory: what the autoscaler remembers of a pool: recent loads, recommendations, changes and cold starts."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.autoscaler.cold_starts import ColdStarts
from chairlift.autoscaler.config import AutoscalerConfig, normal_wait_seconds
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.load_and_demand_window import LoadWindow, ReplicaCapacity
from chairlift.autoscaler.pool_load import PoolLoad, pool_load
from chairlift.autoscaler.pool_sample import PoolSample

NUM_CHANGES = 1000
"""Changes that are remembered at most; limits of steps and reversals look back an hour at the most."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the target that was carried out.

    Attributes:
        at_seconds: monotonic time.
        current: replicas before.
        target: replicas after.
    """

    at_seconds: float
    current: int
    target: int

    @property
    def is_growth(self) -> bool:
        """Whether the pool grew."""
        return self.target > self.current


class PoolHistory:
    """The recent past of one pool. A gap in the samples or a clock that went back makes it forget the loads before.

    Attributes:
        config: the configuration, whose times say what is kept.
        newest: the newest sample; None before the first.
        changes: the changes, oldest first.
        panic_until: monotonic time at which the newest panic ends.
        idle_since: monotonic time since which the pool has had no request; None while it has any.
    """

    def __init__(self, config: AutoscalerConfig) -> None:
        self.newest: PoolSample | None = None
        self.changes: deque[Change] = deque(maxlen=NUM_CHANGES)
        self.panic_until = float("-inf")
        self.idle_since: float | None = None
        self.config = config
        self._loads: deque[PoolLoad] = deque()
        self._recommended: deque[tuple[float, float]] = deque()
        self._cold_starts = ColdStarts()
        self._max_running_requests: float | None = None
        self._prefill_tokens_per_second: float | None = None
        self._service_seconds: float | None = None
        self._next_learning_at = float("-inf")

    def add(self, sample: PoolSample) -> None:
        """Add a sample; one that is as old as the newest or slightly older is ignored."""
        max_gap = self.config.windows.max_gap_seconds
        if self.newest is not None:
            elapsed = sample.at_seconds - self.newest.at_seconds
            if -max_gap <= elapsed <= 0:
                return
            if abs(elapsed) > max_gap:
                self._forget(clock_went_back=elapsed < 0)
        self.newest = sample
        load = pool_load(sample)
        self._loads.append(load)
        _drop_before(self._loads, sample.at_seconds - self._load_seconds())
        self._cold_starts.add(sample)
        self._learn_capacity(load)
        if (is_idle := load.is_idle) is None:
            return  # unknown: neither proves nor ends the idle time
        self.idle_since = (self.idle_since if self.idle_since is not None else sample.at_seconds) if is_idle else None

    def record(self, decision: Decision, *, is_applied: bool = True) -> None:
        """Remember a decision; `is_applied` is False if the pool was not changed, as in a dry run."""
        now, max_gap = decision.at_seconds, self.config.windows.max_gap_seconds
        self.panic_until = decision.panic_until if decision.is_panic else self.panic_until
        if decision.recommended is not None:
            if self._recommended and now - self._recommended[-1][0] > max_gap:
                self._recommended.clear()  # the need in between is unknown
            self._recommended.append((now, decision.recommended))
            while now - self._recommended[0][0] > self.config.windows.stabilisation_seconds + max_gap:
                self._recommended.popleft()
        if is_applied and decision.has_change and not self._is_repeated(decision):
            self.changes.append(Change(now, decision.current, decision.target))

    @property
    def is_idle_now(self) -> bool:
        """Whether the newest sample shows that the pool has no request."""
        return bool(self._loads) and self._loads[-1].is_idle is True

    def window(self, seconds: float, capacity: ReplicaCapacity) -> LoadWindow:
        """Return the loads of the last seconds, at least the two newest; there must have been a sample."""
        start = self._loads[-1].at_seconds - seconds
        loads = [each for each in self._loads if each.at_seconds >= start]
        if len(loads) < 2:
            loads = list(self._loads)[-2:]
        return LoadWindow(loads, capacity)

    def loads_since(self, at_seconds: float) -> Sequence[PoolLoad]:
        """Return the loads from a time on, oldest first; empty if the samples do not go back so far."""
        interval = 1.5 * self.config.interval_seconds
        if not self._loads or self._loads[0].at_seconds > at_seconds + interval:
            return ()
        return [each for each in self._loads if each.at_seconds >= at_seconds] or [self._loads[-1]]

    def highest_recommended(self, now: float) -> float | None:
        """Return the highest recommendation of the stabilisation time; None unless all of this time is known."""
        config, recommended = self.config, self._recommended
        start = now - config.windows.stabilisation_seconds
        # One and a half intervals of tolerance, since samples do not come at exact times.
        if not recommended or recommended[0][0] > start + 1.5 * config.interval_seconds:
            return None
        if now - recommended[-1][0] > config.windows.max_gap_seconds:
            return None
        return max((value for at, value in recommended if at >= start), default=0.0)

    def cold_start_seconds(self) -> float:
        """Return the median time of a start, or what is configured until one was measured."""
        seconds = self._cold_starts.median_seconds()
        return self.config.cold_start_seconds if seconds is None else seconds

    def capacity(self) -> ReplicaCapacity:
        """Return what one replica can do, as measured so far."""
        return ReplicaCapacity(
            max_running_requests=self._max_running_requests,
            prefill_tokens_per_second=self._prefill_tokens_per_second,
            cold_start_seconds=self.cold_start_seconds(),
            drain_seconds=max(self.cold_start_seconds(), self.config.targets.drain_seconds),
            service_seconds=self._service_seconds,
        )

    def _load_seconds(self) -> float:
        thresholds = self.config.thresholds
        seconds = max(thresholds.grow_seconds, thresholds.shrink_seconds) if thresholds is not None else 0.0
        return max(self.config.windows.stable_seconds, seconds) + 2 * self.config.interval_seconds

    def _learn_capacity(self, load: PoolLoad) -> None:
        for name in ("max_running_requests", "prefill_tokens_per_second"):
            quantity = load.quantities[name]
            if quantity is not None and quantity.total > 0:
                setattr(self, f"_{name}", quantity.total / (load.num_ready - quantity.num_missing))
        windows = self.config.windows
        is_due = load.at_seconds >= self._next_learning_at
        if is_due and load.at_seconds - self._loads[0].at_seconds >= windows.stable_seconds / 2:
            self._next_learning_at = load.at_seconds + windows.panic_seconds
            stable = self.window(windows.stable_seconds, self.capacity())
            seconds = stable.calm_service_seconds(normal_wait_seconds(self.config.targets))
            self._service_seconds = seconds if seconds is not None else self._service_seconds

    def _forget(self, *, clock_went_back: bool) -> None:
        self._loads.clear()
        self._recommended.clear()
        self.idle_since = None
        self._next_learning_at = float("-inf")
        # After a gap the changes are still true; by another clock their times mean nothing.
        if clock_went_back:
            self.changes.clear()
            self.panic_until = float("-inf")

    def _is_repeated(self, decision: Decision) -> bool:
        """Whether the pool does not show a change yet that was decided a moment ago."""
        if not self.changes:
            return False
        last = self.changes[-1]
        is_recent = decision.at_seconds - last.at_seconds <= self.config.windows.max_gap_seconds
        return is_recent and (last.current, last.target) == (decision.current, decision.target)


def _drop_before(loads: deque[PoolLoad], at_seconds: float) -> None:
    while loads[0].at_seconds < at_seconds:
        loads.popleft()
