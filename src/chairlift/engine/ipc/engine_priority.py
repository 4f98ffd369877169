"""EnginePriority: the niceness of an engine that shares its processors with its clients.

A client's work is short and an engine's steps are long, so the engine has a lower priority: an overloaded API server
still answers. Beside other programs the engine would stand still for that, because the lower priority holds against
them as well. While they keep it waiting, it has the priority of all others (ADR 0065).
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.core.host.calm_period import CALM, CalmPeriod
from chairlift.core.host.process_activity import RunQueueDelay, ThreadTimes, parent_cpu_seconds

log = logging.getLogger(__name__)

NICENESS = 5
"""Added to the niceness of the engine: the clients' short work goes first."""

CHECK_SECONDS = 2.0
"""Seconds between two measurements: a client that uses a processor for a moment decides nothing."""

DELAYED = 0.5
"""Share of its time for which the engine waits for a processor, above which other programs delay it."""

MEASURED_SECONDS = 0.1
"""Least seconds in which the engine computed, or was ready to: with fewer a check says nothing."""

RETRY_SECONDS = 60.0
"""Seconds without a check after a thread could not be started."""

FIRST_CALM_SECONDS, MAX_CALM_SECONDS = 8.0, 128.0
"""Seconds without delay after which the priority is lowered; doubled each time that was too early."""


class PrioritizedEngine(Protocol):
    """What EnginePriority changes: an InlineClient."""

    def move_to_new_thread(self, niceness: int) -> None:
        """See InlineClient."""
        ...


class EnginePriority:
    """Lowers the priority of an engine, except while other programs delay it.

    Attributes:
        is_low: whether the engine's priority is lower than that of its clients.
    """

    def __init__(
        self, engine: PrioritizedEngine, *, read: Callable[[], Sequence[ThreadTimes]] | None = None,
        client_seconds: Callable[[], float] | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Lower the priority of an engine.

        `read` is RunQueueDelay.read of this process, `client_seconds` the processor time of the calling thread and of
        the process that started this one: the engine waits for these by intention.
        """
        self._engine, self._now = engine, now
        self._read, self._client_seconds = read or RunQueueDelay().read, client_seconds or _seconds_of_client
        self._check_at, self._client_before = now(), 0.0
        self._calm_period = CalmPeriod(FIRST_CALM_SECONDS, MAX_CALM_SECONDS)
        self.is_low = False
        self._set(now(), is_low=True)

    def check(self) -> None:
        """Measure, once in CHECK_SECONDS, and change the priority; call it from a thread with the full priority."""
        if (now := self._now()) < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        times, seconds = self._read(), self._client_seconds()
        used, self._client_before = seconds - self._client_before, seconds
        last = max(times, key=lambda each: each.delay_seconds, default=ThreadTimes(0.0, 0.0))
        measured = last.run_seconds + last.delay_seconds
        if measured >= MEASURED_SECONDS:
            self._change((last.delay_seconds - used) / measured, now)

    def _change(self, share: float, now: float) -> None:
        self._calm_period.observe(now, is_calm=share < CALM)
        if self.is_low and share > DELAYED:
            if self._set(now, is_low=False):
                log.info(
                    "other programs delay the engine for %.0f %% of its time, the limit is %.0f %%: it runs at normal "
                    "priority", 100 * share, 100 * DELAYED,
                )  # fmt: skip
                self._calm_period.end_trial(now)
        elif not self.is_low and self._calm_period.has_passed(now) and self._set(now, is_low=True):
            log.info("no other program delays the engine: it runs at niceness +%d again", NICENESS)
            self._calm_period.begin_trial(now)

    def _set(self, now: float, *, is_low: bool) -> bool:
        """Change the priority; return False if no thread can be started, which is tried again later."""
        try:
            self._engine.move_to_new_thread(NICENESS if is_low else 0)
        except RuntimeError as error:
            log.warning("the priority of the engine stays as it is: %s", error)
            self._check_at = now + RETRY_SECONDS
            return False
        self.is_low = is_low
        return True


def _seconds_of_client() -> float:
    """Return the processor time of this thread and of the process that started this one."""
    return time.thread_time() + parent_cpu_seconds()
