"""RateEstimator, DecayingRate: measure how many events a second there are."""

import math
from collections import deque

RATE_SECONDS = 30.0
"""Seconds over which a rate is measured: requests that start together end together, so it spans several batches."""

MAX_RATE_EVENTS = 4096
"""Most events that an estimator keeps."""

MIN_RATE_EVENTS = 8
"""Fewest events assumed in the window, so that a rate with few events is overestimated, less and less."""

FORGET_SECONDS = 300.0
"""Seconds after which a stopped estimator's events are too old to use."""

DECAY_SECONDS = 0.5
"""Time constant in seconds: the rejection rate falls to a third (1/e) in it once rejections end."""


class RateEstimator:
    """Measures events a second on a clock that runs only while the rate matters, idle time included.

    So a busy period starts with the rate of the last one.
    """

    def __init__(self) -> None:
        self._event_times: deque[float] = deque(maxlen=MAX_RATE_EVENTS)  # times on its clock
        self._elapsed = 0.0  # its clock's time when it stopped
        self._running_since: float | None = None
        self._stopped = 0.0

    def run(self, now: float, *, matters: bool) -> None:
        """Start the clock at `now` if the rate matters, or stop it."""
        if matters and self._running_since is None:
            if now - self._stopped > FORGET_SECONDS:
                self._event_times.clear()
                self._elapsed = 0.0
            self._running_since = now
        elif not matters and self._running_since is not None:
            self._elapsed, self._running_since, self._stopped = self._clock(now), None, now

    def record(self, now: float) -> None:
        """Record an event; events while the clock is stopped are ignored."""
        if self._running_since is not None:
            self._event_times.append(self._clock(now))

    def rate(self, now: float) -> float:
        """Return events a second."""
        clock, event_times = self._clock(now), self._event_times
        while event_times and event_times[0] < clock - RATE_SECONDS:
            event_times.popleft()
        begin = event_times[0] if len(event_times) == MAX_RATE_EVENTS else max(0.0, clock - RATE_SECONDS)
        seconds = clock - begin
        return max(len(event_times), MIN_RATE_EVENTS) / seconds if seconds > 0 else math.inf

    def _clock(self, now: float) -> float:
        return self._elapsed if self._running_since is None else self._elapsed + now - self._running_since


class DecayingRate:
    """Measures recent events a second, with exponential decay."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, -math.inf

    def record(self, now: float) -> None:
        """Record an event."""
        self._rate = self.rate(now) + 1.0 / DECAY_SECONDS
        self._at = now

    def rate(self, now: float) -> float:
        """Return events a second."""
        return self._rate * math.exp((self._at - now) / DECAY_SECONDS) if self._rate else 0.0
