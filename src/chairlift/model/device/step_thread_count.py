"""StepThreadCount: computes steps with fewer threads while other programs use their processors.

The threads, torch's or those of the native kernels, wait for each other several hundred times in a step. When another
program has displaced one of them, all wait until it runs again, some milliseconds each time: n threads compute as fast
as n times the product of the shares of time in which each of them has a processor. One thread alone loses no more than
the share of the other programs (ADR 0064).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

from chairlift.core.host.calm_period import CALM, CalmPeriod
from chairlift.core.host.process_activity import RunQueueDelay, ThreadTimes

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25
"""Least seconds between two measurements, and of a step after which it is measured in its midst."""

MAX_COST = 0.005
"""Largest share of the time that measurements take; one takes 0.3 ms, and 4 ms in a process of 200 threads."""

WORTHWHILE_SPEED = 0.7
"""The speed with all threads, as a share of that with fewer and no delay, below which fewer are used.

Threads that wait for each other less often are faster than computed: up to 1.4 times beside a load generator.
"""

MEASURED_SECONDS = 0.02
"""Least seconds of steps in a measurement, by default: several time slices of the system's scheduler."""

FIRST_CALM_SECONDS, MAX_CALM_SECONDS = 2.0, 64.0
"""Seconds without delay before more threads are tried; doubled by each trial that fails."""


class StepThreadCount:
    """The number of threads that compute a step.

    begin_step and end_step enclose each step; check_in_step comes between two of its layers.
    """

    def __init__(
        self, most: int, *, apply: Callable[[int], None], read: Callable[[], Sequence[ThreadTimes]] | None = None,
        now: Callable[[], float] = time.monotonic, measured_seconds: float = MEASURED_SECONDS,
        client_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """Begin with `most` threads, which there are already.

        `apply` changes their number, in the thread that computes steps; if it raises a RuntimeError, the number stays.
        `read` is RunQueueDelay.read, `measured_seconds` the least time of the steps in a measurement, `client_seconds`
        the processor time of programs for which the threads may wait without being delayed. close() brings all threads
        back: torch is also used by the application.
        """
        self._most = self.count = most
        self._read, self._now, self._apply = read or RunQueueDelay().read, now, apply
        self._least_seconds, self._client_seconds, self._client_before = measured_seconds, client_seconds, 0.0
        self._part_began = 0.0  # of a step, or of the rest behind a measurement in its midst
        self._next_check_at, self._is_measuring, self._measured_seconds = 0.0, False, 0.0
        self._check_seconds = CHECK_SECONDS
        self._calm_period = CalmPeriod(FIRST_CALM_SECONDS, MAX_CALM_SECONDS)

    def begin_step(self) -> None:
        """Begin a measurement if one is due."""
        if self._most == 1:
            return
        self._part_began = now = self._now()
        if not self._is_measuring and now >= self._next_check_at:
            self._is_measuring, self._measured_seconds = True, 0.0
            self._read_delays(now)

    def check_in_step(self) -> None:
        """Measure a step that takes long, and use more or fewer threads from now on."""
        if self._most == 1 or (now := self._now()) - self._part_began < self._check_seconds:
            return
        if self._is_measuring:
            self._end_measurement(now)
        else:
            self._read_delays(now)
        # A reading is also the begin of the next measurement.
        self._is_measuring, self._measured_seconds, self._part_began = True, 0.0, now

    def end_step(self) -> None:
        """End a measurement that is long enough, and use more or fewer threads in the next step."""
        if not self._is_measuring:
            return
        now = self._now()
        if self._measured_seconds + now - self._part_began >= self._least_seconds:
            self._end_measurement(now)
            self._is_measuring, self._next_check_at = False, now + self._check_seconds
        else:
            self._measured_seconds += now - self._part_began

    def close(self) -> None:
        """Use all threads again."""
        if self.count < self._most:
            self._set(self._most)

    def _end_measurement(self, now: float) -> None:
        seconds = self._measured_seconds + now - self._part_began
        # Delays between steps count without their time.
        shares = sorted((min(delay / seconds, 1.0) for delay in self._read_delays(now)), reverse=True)
        delayed = [share for share in shares[: self.count] if share >= CALM]
        self._change(self._fewer_threads(delayed), not delayed, now)

    def _fewer_threads(self, delayed: Sequence[float]) -> int:
        """Return the number of threads that leaves the other programs their processors, or 0 if all are faster.

        `delayed` are the shares of those that wait. In all others there is always some noise, and its product over
        many threads would say that fewer are faster.
        """
        fewer = max(1, self.count - max(1, round(sum(delayed))))
        speed = self.count * math.prod(1.0 - share for share in delayed)
        return fewer if speed < WORTHWHILE_SPEED * fewer else 0

    def _read_delays(self, now: float) -> list[float]:
        """Return the seconds for which each busy thread was delayed since the last call."""
        times, seconds = self._read(), self._client_seconds()
        used, self._client_before = seconds - self._client_before, seconds
        self._check_seconds = max(CHECK_SECONDS, 2 * (self._now() - now) / MAX_COST)
        return [max(each.delay_seconds - used, 0.0) for each in times]

    def _change(self, fewer: int, is_calm: bool, now: float) -> None:
        self._calm_period.observe(now, is_calm=is_calm)
        if fewer and self.count > 1:
            self._calm_period.end_trial(now)
            self._set(fewer)
        elif self.count < self._most and self._calm_period.has_passed(now):
            self._calm_period.begin_trial(now)
            self._set(min(self._most, 2 * self.count))

    def _set(self, count: int) -> None:
        try:
            self._apply(count)
        except RuntimeError as error:
            log.warning("steps keep %d of %d threads: %s", self.count, self._most, error)
            return
        log.info("steps use %d of %d threads, %d before", count, self._most, self.count)
        self.count = count
