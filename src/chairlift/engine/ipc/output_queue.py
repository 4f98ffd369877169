"""Backlog: news that waits in the engine's process for a client to read; whoever reads is waited for."""

import threading
from collections import deque
from collections.abc import Iterator

from chairlift.core.request import EngineOutput

HIGH_WATER_MARK = 20_000
"""Outputs that may wait before the engine waits, too."""

SECONDS_AN_OUTPUT = 0.001
"""That the engine waits for each output which it adds then."""

LONGEST_WAIT_SECONDS = 0.05
"""That a step waits for one client: one that is slow must not stop its neighbours."""

MAX_TOTAL_WAIT_SECONDS = 5.0
"""That the engine waits in all for a client that takes nothing: such a one has stopped."""


class OutputQueue:
    """News step by step, in order. One thread, the engine's, puts and waits; one, the desk's, takes."""

    def __init__(self) -> None:
        self._steps: deque[list[EngineOutput]] = deque()
        self._put = self._taken = 0  # each changed by one thread alone
        self._room = threading.Event()
        self._waited, self._taken_before = 0.0, 0  # how long since how many were taken

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __len__(self) -> int:
        """How many outputs wait."""
        return self._put - self._taken

    def put(self, outputs: list[EngineOutput]) -> None:
        """Add one step's news; somebody must know that it is to be taken before wait()."""
        self._put += len(outputs)  # first, so that it is never below what is taken
        self._steps.append(outputs)

    def take(self) -> Iterator[EngineOutput]:
        """Take what is there now; not what comes meanwhile, or a fast engine would hold its reader for ever."""
        for _ in range(len(self._steps)):
            outputs = self._steps.popleft()
            self._taken += len(outputs)
            yield from outputs
        self._room.set()

    def throttle(self, count: int) -> None:
        """Where much waits, give the other side time to take it, a little for each of `count` outputs."""
        if len(self) <= HIGH_WATER_MARK:
            return
        if self._taken != self._taken_before:
            self._waited, self._taken_before = 0.0, self._taken
        self._room.clear()
        if (
            len(self) > HIGH_WATER_MARK and self._waited < MAX_TOTAL_WAIT_SECONDS
        ):  # nothing was taken before the clearing
            seconds = min(count * SECONDS_AN_OUTPUT, LONGEST_WAIT_SECONDS)
            self._room.wait(seconds)
            self._waited += seconds
