"""OutputQueue: holds a client's outputs until they are sent; the engine waits for a client that still reads."""

import threading
from collections import deque
from collections.abc import Iterator

from chairlift.core.engine_output import EngineOutput

HIGH_WATER_MARK = 20_000
"""Outputs that may be queued before the engine thread waits."""

SECONDS_AN_OUTPUT = 0.001
"""Seconds that the engine thread waits for each output that it adds above the high-water mark."""

LONGEST_WAIT_SECONDS = 0.05
"""Longest wait of a step for one client, in seconds: a slow client must not stop the others."""

MAX_TOTAL_WAIT_SECONDS = 5.0
"""Longest total wait, in seconds, for a client that reads nothing: it has stopped."""


class OutputQueue:
    """Outputs by step, in order. The engine thread puts and waits; the engine server's thread takes."""

    def __init__(self) -> None:
        self._steps: deque[list[EngineOutput]] = deque()
        self._num_put = self._num_taken = 0  # each changed by one thread alone
        self._has_room = threading.Event()
        self._waited_seconds, self._num_taken_before = 0.0, 0  # seconds waited since the take that made the count

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __len__(self) -> int:
        """Return the number of queued outputs."""
        return self._num_put - self._num_taken

    def put(self, outputs: list[EngineOutput]) -> None:
        """Add the outputs of one step; a take() must be scheduled before throttle() is called."""
        self._num_put += len(outputs)  # first, so that it is never below the number taken
        self._steps.append(outputs)

    def take(self) -> Iterator[EngineOutput]:
        """Take the outputs queued now; later ones could keep the reader busy for ever."""
        for _ in range(len(self._steps)):
            outputs = self._steps.popleft()
            self._num_taken += len(outputs)
            yield from outputs
        self._has_room.set()

    def throttle(self, count: int) -> None:
        """Wait for the reader above the high-water mark, for a time in proportion to `count` outputs."""
        if len(self) <= HIGH_WATER_MARK:
            return
        if self._num_taken != self._num_taken_before:
            self._waited_seconds, self._num_taken_before = 0.0, self._num_taken
        self._has_room.clear()
        # If it is still full, no take() came before the clear().
        if len(self) > HIGH_WATER_MARK and self._waited_seconds < MAX_TOTAL_WAIT_SECONDS:
            seconds = min(count * SECONDS_AN_OUTPUT, LONGEST_WAIT_SECONDS)
            self._has_room.wait(seconds)
            self._waited_seconds += seconds
