"""RunningPlaces: bounds the batches that run at the same time, of one tenant and of all."""

import asyncio
from collections import Counter, deque

MAX_RUNNING_BATCHES = 64
"""Batches that run at the same time, at most, besides the first one of each tenant."""

MAX_RUNNING_OF_TENANT = 8
"""Batches of one tenant that run at the same time; the others wait in the order of their creation."""


class RunningPlaces:
    """Places of running batches. A tenant without a running batch always has one. Belongs to one event loop."""

    def __init__(self) -> None:
        self._num_running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def take(self, tenant: str) -> None:
        """Wait for a place, which release() gives back."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (tenant, granted)
        self._waiting.append(entry)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove(entry)
            else:  # cancelled at the moment at which it was granted
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Give back a place."""
        self._num_running[tenant] -= 1
        self._grant()

    def _grant(self) -> None:
        for entry in [*self._waiting]:
            tenant, granted = entry
            if self._has_place(tenant) and not granted.done():
                self._waiting.remove(entry)
                self._num_running[tenant] += 1
                granted.set_result(None)

    def _has_place(self, tenant: str) -> bool:
        num_own = self._num_running[tenant]
        is_below_limits = num_own < MAX_RUNNING_OF_TENANT and self._num_running.total() < MAX_RUNNING_BATCHES
        return not num_own or is_below_limits
