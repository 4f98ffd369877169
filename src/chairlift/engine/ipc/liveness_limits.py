"""LivenessConfig: how long an engine may be silent, start, stop and take for a step, and how often it restarts.

A machine that other programs keep busy makes an engine slow, and not faulty (ADR 0062):

    silence   counts while the engine process sends nothing and the kernel reports no activity of it
    a step    takes the time in which its threads had a processor or waited for something else
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.errors import ConfigError
from chairlift.core.host.process_activity import without_delay

HEARTBEATS_PER_TIMEOUT = 5
MAX_INTERVAL = 1.0
"""Longest time between two heartbeats, in seconds: the load that clients see is as old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """Limits, in seconds, after which an engine counts as stopped; one in this process has `hang_reason` alone.

    Attributes:
        heartbeat_timeout: silence of an engine process without activity; also the limit of the engine for a client that
            has not spawned it. Both sides send at least five heartbeats in it, and one a second.
        step_timeout: age of a step in progress, without the time that its threads waited for a processor; also the
            silence of an engine process with activity.
        start_heartbeat_timeout: silence while the engine starts: imports and loading may hold the GIL for long.
        start_timeout: from the start of the process to the first request; also the age of a warm-up in progress.
        call_timeout: wait for the reply to a remote call (a step in progress is waited for), without the time that the
            engine's threads waited for a processor.
        stop_timeout: wait for an engine that has to stop; then it is killed.
        max_restarts: automatic restarts within restart_period; one more failure is final.
        restart_period: see max_restarts.
        first_backoff: pause before the second restart in a row, doubled for each further one; the first has none.
    """

    heartbeat_timeout: float = 30.0
    step_timeout: float = 120.0
    start_heartbeat_timeout: float = 60.0
    start_timeout: float = 1800.0
    call_timeout: float = 150.0
    stop_timeout: float = 10.0
    max_restarts: int = 5
    restart_period: float = 300.0
    first_backoff: float = 0.5

    def __post_init__(self) -> None:
        for name in (
            "heartbeat_timeout", "step_timeout", "start_heartbeat_timeout", "start_timeout", "call_timeout",
            "stop_timeout",
            "restart_period",
        ):  # fmt: skip
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}", option=name)
        for name in ("max_restarts", "first_backoff"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {value}", option=name)

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return min(MAX_INTERVAL, self.heartbeat_timeout / HEARTBEATS_PER_TIMEOUT)

    def hang_reason(self, step_age: float, warmup_age: float) -> str:
        """Return why an engine hangs whose step and warm-up in progress have these ages; "" where it does not."""
        if step_age > self.step_timeout:
            return f"the engine hangs: a step takes {step_age:.1f} s, the limit is {self.step_timeout:g} s"
        if warmup_age > self.start_timeout:
            return f"the engine hangs: a warm-up takes {warmup_age:.1f} s, the limit is {self.start_timeout:g} s"
        return ""


class SilenceTimer:
    """Counts how long the other side has sent nothing, only while this side was able to receive.

    A receiver that was stopped, swapped out or busy for a minute has not observed a minute of silence: one gap
    between two elapsed() calls counts as two intervals at most.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._checked_at = now
        self._silent_seconds = 0.0

    def reset(self, now: float) -> None:
        """Reset the timer: a message arrived."""
        self._checked_at, self._silent_seconds = now, 0.0

    def elapsed(self, now: float) -> float:
        """Return the seconds of silence; call it after all messages that had arrived were received."""
        self._silent_seconds += min(now - self._checked_at, 2 * self._interval)
        self._checked_at = now
        return self._silent_seconds


class OperationTimer:
    """Measures how long the latest operation takes, in waking time like SilenceTimer, without delays by other programs.

    `delay` returns the seconds that other programs have delayed this process so far (RunQueueDelay).
    """

    def __init__(self, interval: float, delay: Callable[[], float]) -> None:
        self._started_at: float | None = None
        self._silence = SilenceTimer(interval, 0.0)
        self._delay, self._delay_before = delay, 0.0

    def elapsed(self, started_at: float | None, now: float) -> float:
        """Return the seconds of the operation that started at `started_at`, 0 for None.

        Another start time means another operation.
        """
        if started_at is None:
            return 0.0
        delay = self._delay()
        if started_at != self._started_at:
            self._started_at, self._delay_before = started_at, delay
            self._silence.reset(started_at)
        return max(0.0, without_delay(self._silence.elapsed(now), delay - self._delay_before))
