"""StepStatsQueue: holds step stats not yet sent to a watching client; bounded, so a slow client stalls no thread."""

from collections import deque

from chairlift.engine.step_stats import StepStats

MAX_STEPS = 10_000
"""Step stats kept for a client that does not read; later ones are dropped and counted."""


class StepStatsQueue:
    """The engine thread adds, the engine server's thread takes; neither waits for the other."""

    def __init__(self) -> None:
        self._steps: deque[StepStats] = deque()
        self._num_dropped = self._num_reported = 0

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, stats: StepStats) -> None:
        """Add the stats of a step; count them as dropped when the queue is full."""
        if len(self._steps) < MAX_STEPS:
            self._steps.append(stats)
        else:
            self._num_dropped += 1

    def take(self) -> tuple[list[StepStats], int]:
        """Remove and return the queued stats, oldest first, and how many were dropped since the last call."""
        num_dropped = self._num_dropped
        num_new, self._num_reported = num_dropped - self._num_reported, num_dropped
        return [self._steps.popleft() for _ in range(len(self._steps))], num_new
