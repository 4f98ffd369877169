"""EnginePriority: the niceness of an engine that shares its processors with its clients.

A client's work is short and an engine's steps are long, so the engine has a lower priority: an overloaded API server
still answers. Beside other programs the engine would stand still for that, because the lower priority holds against
them as well. While they keep it waiting, it has the priority of all others (ADR 0065).
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.core.host.calm_period import CalmPeriod
from chairlift.core.host.process_activity import RunQueueDelay, ThreadTimes, cpu_seconds

log = logging.getLogger(__name__)

NICENESS = 5
"""Added to the niceness of the engine: the clients' short work goes first."""

CHECK_SECONDS = 1.0

MEASURED_SECONDS = 0.1
"""Least seconds in which the engine computed, or was ready to: with fewer a check says nothing."""

DELAYED, CALM = 0.4, 0.2
"""Shares of these seconds: an engine that waited longer for other programs is delayed, less than CALM is not."""

FIRST_CALM_SECONDS, MAX_CALM_SECONDS = 8.0, 128.0
"""Seconds without delay after which the priority is lowered; doubled each time that was too early."""


class PrioritizedEngine(Protocol):
    """What EnginePriority changes: an InlineClient."""

    def move_to_new_thread(self) -> None:
        """See InlineClient."""
        ...

    def lower_thread_priority(self, niceness: int) -> None:
        """See InlineClient."""
        ...


class EnginePriority:
    """Lowers the priority of an engine, except while other programs delay it.

    Attributes:
        is_low: whether the engine's priority is lower than that of its clients.
    """

    def __init__(
        self, engine: PrioritizedEngine, *, read: Callable[[], Sequence[ThreadTimes]] | None = None,
        own_seconds: Callable[[], float] | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Lower the priority of an engine.

        `read` is RunQueueDelay.read of this process, `own_seconds` the processor time of the calling thread and of the
        process that started this one: the engine waits for these by intention.
        """
        self._engine, self._now = engine, now
        self._read, self._own_seconds = read or RunQueueDelay().read, own_seconds or _seconds_of_client
        self._check_at, self._own_before = now(), 0.0
        self._calm_period = CalmPeriod(FIRST_CALM_SECONDS, MAX_CALM_SECONDS)
        self.is_low = True
        engine.lower_thread_priority(NICENESS)

    def check(self) -> None:
        """Measure, once in CHECK_SECONDS, and change the priority; call it from a thread with the full priority."""
        if (now := self._now()) < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        times, own = self._read(), self._own_seconds()
        used, self._own_before = own - self._own_before, own
        last = max(times, key=lambda each: each.delay_seconds, default=ThreadTimes(0.0, 0.0))
        measured = last.run_seconds + last.delay_seconds
        if measured >= MEASURED_SECONDS:
            self._change((last.delay_seconds - used) / measured, now)

    def _change(self, share: float, now: float) -> None:
        self._calm_period.observe(now, is_calm=share < CALM)
        if self.is_low and share > DELAYED:
            self._raise(share, now)
        elif not self.is_low and self._calm_period.has_passed(now):
            log.info("no other program delays the engine: its priority is below that of its clients")
            self.is_low = True
            self._calm_period.begin_trial(now)
            self._engine.lower_thread_priority(NICENESS)

    def _raise(self, share: float, now: float) -> None:
        try:
            self._engine.move_to_new_thread()
        except RuntimeError as error:
            log.warning("the engine keeps its low priority: %s", error)
            return
        log.info("other programs delay the engine for %.0f %% of its time: it has the priority of all", 100 * share)
        self.is_low = False
        self._calm_period.end_trial(now)


def _seconds_of_client() -> float:
    """Return the processor time of this thread and of the process that started this one."""
    return time.thread_time() + (cpu_seconds(os.getppid()) or 0.0)
