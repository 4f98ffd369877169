"""Controller: the loop that measures a pool, decides, and carries the decision out, whatever fails on the way.

sample ──► history ──► decide ──► apply ──► sleep ──► sample ...
  └── fails or hangs: logged, counted, tried again with growing delays; the pool stays as it is

An `Actuator` measures and changes the pool.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.decision_log import DecisionLog
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.autoscaler.status import AutoscalerStatus, FailureAction
from chairlift.core.clock import Clock
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)
T = TypeVar("T")

MIN_WAKE_SECONDS = 0.2
"""Least time between two steps when something wakes the loop: many requests may wait for a first replica."""

MAX_BACKOFF_SECONDS = 10.0
"""Longest extra delay after failures in a row; below max_gap_seconds, so that a short outage costs no history."""


class Actuator(Protocol):
    """Measures and changes one pool. Both may raise any ChairliftError or OSError; the controller tries again."""

    async def sample(self) -> PoolSample:
        """Return the pool as it is now; `at_seconds` is of the controller's clock. May be cancelled at any time."""
        ...

    async def apply(self, decision: Decision) -> None:
        """Have `decision.target` replicas and drain those of `decision.remove`; returns when that is noted.

        Applying the same decision twice starts nothing twice.
        """
        ...


class Controller:
    """Scales one pool.

    Attributes:
        config: the configuration.
        history: what is known of the pool.
        status: the newest numbers and decisions, for metrics and for an admin route.
    """

    def __init__(
        self,
        actuator: Actuator,
        config: AutoscalerConfig,
        clock: Clock,
        on_decision: Callable[[Decision], None] | None = None,
    ) -> None:
        """Take what the loop works with; `on_decision` is called with every decision, before it is carried out."""
        self.config = config
        self.history = PoolHistory(config)
        self.status = AutoscalerStatus(config)
        self._actuator = actuator
        self._clock = clock
        self._on_decision = on_decision
        self._log = DecisionLog()
        self._wakeup = asyncio.Event()
        self._num_failures = 0

    def update_config(self, config: AutoscalerConfig) -> None:
        """Decide by another configuration from now on, for example one with another version of replicas."""
        self.config = self.history.config = config
        self.wake()

    def wake(self) -> None:
        """Decide soon, for example because a request waits for a first replica; after a failure its delay holds."""
        self._wakeup.set()

    async def run(self) -> None:
        """Decide and act in every interval until the task is cancelled."""
        while True:
            started_at = self._clock.now()
            await self.step()
            delay = self.config.interval_seconds
            if self._num_failures:
                least = delay = min(delay * 2**self._num_failures, delay + MAX_BACKOFF_SECONDS)
            else:
                least = min(MIN_WAKE_SECONDS, delay)
            elapsed = self._clock.now() - started_at
            await self._sleep(least - elapsed, delay - elapsed)

    async def step(self) -> None:
        """Measure, decide and act once; no failure leaves this method."""
        failure = await self._step()
        if failure is None:
            self._num_failures = 0
            return
        self._num_failures = min(self._num_failures + 1, 10)
        action, error = failure
        self.status.add_failure(action)
        log.warning(
            "autoscaler: %s failed %d times in a row, the pool stays as it is until it succeeds: %s: %s",
            action, self._num_failures, type(error).__name__, error,
        )  # fmt: skip

    async def _step(self) -> tuple[FailureAction, Exception] | None:
        config = self.config
        try:
            sample = await within(config.sample_timeout_seconds, self._actuator.sample())
            self.history.add(sample)
        except Exception as error:  # an actuator is foreign code: whatever it raises, the loop goes on
            return FailureAction.SAMPLE, error
        try:
            decision = decide(self.history, config, self._clock.now())
            self._log.write(decision, sample, config)
            self.status.add_decision(decision, sample, self.history, config)
            if self._on_decision is not None:
                self._on_decision(decision)
        except Exception as error:
            return FailureAction.DECIDE, error
        failure = None
        is_applied = decision.has_change and not config.is_dry_run
        if is_applied:
            try:
                await within(config.apply_timeout_seconds, self._actuator.apply(decision))
            except Exception as error:
                # What takes too long may still happen: limits of speed count it.
                failure, is_applied = (FailureAction.APPLY, error), isinstance(error, TimeoutError)
        self.history.record(decision, is_applied=is_applied)
        return failure

    async def _sleep(self, least: float, most: float) -> None:
        """Sleep for `most` seconds; a wake-up ends it after `least`."""
        await asyncio.sleep(max(0.0, least))
        try:
            # wait_for of Python 3.11 can swallow a cancellation
            async with asyncio.timeout(max(0.0, most - max(0.0, least))):
                await self._wakeup.wait()
        except TimeoutError:
            return
        self._wakeup.clear()


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that ends within the time. Raises TimeoutError, also if it ignores cancellation."""
    task = asyncio.ensure_future(call)
    try:
        # Not wait_for(), which waits for a call that ignores its cancellation.
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_take_result)
    if not task.done():
        raise TimeoutError(f"no result within {seconds:g} s")
    if task.cancelled():
        raise ClusterFailed("the call was cancelled from within")  # ours would have ended the wait
    return task.result()


def _take_result(task: "asyncio.Task[Any]") -> None:
    """Take a result that comes too late, so that asyncio does not report it as lost."""
    if not task.cancelled():
        task.exception()
