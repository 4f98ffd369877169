"""Clock, SystemClock, ThreadCpuClock, FakeClock: time as a dependency, from the system or moved by tests."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of seconds that never decrease; only differences are meaningful."""

    def now(self) -> float:
        """Return seconds since some fixed point."""
        ...


class SystemClock:
    """The machine's monotonic clock; wall clock changes do not affect it."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


class ThreadCpuClock:
    """The processor time of the calling thread: it stands still while the thread waits, or other programs run.

    A reading takes 0.3 to 1 µs, ten times as long as one of SystemClock.
    """

    def now(self) -> float:
        """Return the seconds for which the calling thread has run."""
        return time.thread_time()


class FakeClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the seconds that `advance` has set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; a negative value is the caller's bug."""
        assert seconds >= 0, f"a monotonic clock cannot go back {seconds} s"
        self._now += seconds
