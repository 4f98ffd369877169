"""Time as a thing that is passed in: the system's, or one that tests move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards; only differences mean anything."""

    def now(self) -> float:
        """Return seconds since some fixed point."""
        ...


class SystemClock:
    """The monotonic clock of the machine; a change of the wall clock does not move it."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


class FakeClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the seconds to which the clock was moved."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward; a negative step is a bug of the caller."""
        assert seconds >= 0, f"a monotonic clock cannot go back {seconds} s"
        self._now += seconds
