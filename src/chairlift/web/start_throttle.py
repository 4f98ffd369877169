"""Turnstile: requests that were let in begin a few in each turn of the event loop.

A request that is let in costs as much as many that are refused. Where a crowd comes at once, a turn that began all of
it would last until all of that work is done, and whoever comes meanwhile would wait so long only to hear that there is
no room.
"""

import asyncio
from collections import deque
from collections.abc import Callable

A_TURN = 2
"""Requests that begin in one turn: less than a millisecond of work."""


class Turnstile:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()
        self._room = A_TURN
        self._turns = False

    def enter(self, begin: Callable[[], None]) -> None:
        """Begin something in its turn, which is now where nobody stands before it."""
        if self._room and not self._line:
            self._room -= 1
            begin()
        else:
            self._line.append(begin)
        if not self._turns:
            self._turns = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._room = A_TURN
        try:
            while self._line and self._room:
                self._room -= 1
                self._line.popleft()()
        finally:
            self._turns = self._room < A_TURN
            if self._turns:
                asyncio.get_running_loop().call_soon(self._turn)
