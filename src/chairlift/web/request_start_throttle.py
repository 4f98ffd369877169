"""StartThrottle: starts admitted requests a few in each iteration of the event loop.

An admitted request costs as much as many rejected ones. If many arrive at once, an iteration that started all of them
would last until all of that work is done, and later requests would wait that long only to be rejected.
"""

import asyncio
from collections import deque
from collections.abc import Callable

STARTS_PER_ITERATION = 2
"""Requests that start in one iteration of the event loop: less than a millisecond of work."""


class StartThrottle:
    """Queue of the starts of admitted requests. Belongs to one event loop."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._room = STARTS_PER_ITERATION
        self._is_scheduled = False

    def enter(self, begin: Callable[[], None]) -> None:
        """Call `begin` in order: at once if the queue is empty and the iteration has room, else later."""
        if self._room and not self._queue:
            self._room -= 1
            begin()
        else:
            self._queue.append(begin)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_iteration)

    def _run_iteration(self) -> None:
        self._room = STARTS_PER_ITERATION
        try:
            while self._queue and self._room:
                self._room -= 1
                self._queue.popleft()()
        finally:
            self._is_scheduled = self._room < STARTS_PER_ITERATION
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._run_iteration)
