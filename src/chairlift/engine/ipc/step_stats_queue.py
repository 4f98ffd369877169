"""StepBacklog: the steps that a client which watches was not told yet; bounded, so that a slow one stalls nobody."""

from collections import deque

from chairlift.engine.stats import StepStats

MAX_STEPS = 10_000
"""So many are kept for a client that does not read; those that come then are left out and counted."""


class StepStatsQueue:
    """The engine's thread adds, the desk's thread takes; neither waits for the other."""

    def __init__(self) -> None:
        self._steps: deque[StepStats] = deque()
        self._left_out = self._told = 0

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, stats: StepStats) -> None:
        """Keep a step, or count it when there are too many."""
        if len(self._steps) < MAX_STEPS:
            self._steps.append(stats)
        else:
            self._left_out += 1

    def take(self) -> tuple[list[StepStats], int]:
        """Return what lies here, oldest first, and how many were left out since the last time."""
        left_out = self._left_out
        unseen, self._told = left_out - self._told, left_out
        return [self._steps.popleft() for _ in range(len(self._steps))], unseen
