"""RunningPlaces: bounds the batches that do the same at one time, of one tenant and of all."""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RunningPlaces:
    """Places of running batches. A tenant without a running batch always has one. Belongs to one event loop."""

    def __init__(self, max_running: int, max_of_tenant: int) -> None:
        """Allow `max_of_tenant` batches of one tenant, and `max_running` of all besides the first one of each."""
        self._max_running, self._max_of_tenant = max_running, max_of_tenant
        self._num_running: Counter[str] = Counter()
        self._waiting: list[tuple[int, str, asyncio.Future[None]]] = []  # in the order of their numbers

    @asynccontextmanager
    async def place(self, tenant: str, number: int) -> AsyncIterator[None]:
        """Wait for a place, and keep it in the context; of those that wait the one of the lowest number is next."""
        await self._take(tenant, number)
        try:
            yield
        finally:
            self._release(tenant)

    async def _take(self, tenant: str, number: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (number, tenant, granted)
        insort(self._waiting, entry, key=lambda each: each[0])
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove(entry)
            else:  # cancelled at the moment at which it was granted
                self._release(tenant)
            raise

    def _release(self, tenant: str) -> None:
        self._num_running[tenant] -= 1
        self._grant()

    def _grant(self) -> None:
        for entry in [*self._waiting]:
            _, tenant, granted = entry
            if self._has_place(tenant) and not granted.done():
                self._waiting.remove(entry)
                self._num_running[tenant] += 1
                granted.set_result(None)

    def _has_place(self, tenant: str) -> bool:
        num_own = self._num_running[tenant]
        is_below_limits = num_own < self._max_of_tenant and self._num_running.total() < self._max_running
        return not num_own or is_below_limits
