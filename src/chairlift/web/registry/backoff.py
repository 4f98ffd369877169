"""Backoff: the delays between attempts to reach a service that is down."""

import random


class Backoff:
    """Delays that double up to a maximum, each of them random between its half and its whole.

    The jitter keeps many processes that lost one service at the same moment from returning at the same moment.
    """

    def __init__(
        self, rng: random.Random, *, first_seconds: float = 0.2, max_seconds: float = 5.0, factor: float = 2.0
    ) -> None:
        """Start with `first_seconds`; one seed of `rng` gives the same delays again."""
        assert 0 < first_seconds <= max_seconds, (first_seconds, max_seconds)
        self._rng = rng
        self._first, self._max, self._factor = first_seconds, max_seconds, factor
        self._delay = first_seconds

    def next_delay(self) -> float:
        """Return the seconds before the next attempt, and make the delay after it longer."""
        delay = self._delay
        self._delay = min(self._max, delay * self._factor)
        return delay * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the first delay, after an attempt that succeeded."""
        self._delay = self._first
