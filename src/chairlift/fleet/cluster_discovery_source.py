"""ClusterSource: the discovery source of a fleet, whose list is that of the replicas which its cluster has."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from chairlift.router.discovery.base import Snapshot
from chairlift.router.endpoint import Endpoint


class ClusterSource:
    """A list that the fleet sets. Belongs to one event loop."""

    def __init__(self, name: str = "fleet") -> None:
        self.name = name
        self._endpoints: Snapshot | None = None
        self._changed = asyncio.Event()

    def set(self, endpoints: Sequence[Endpoint]) -> None:
        """Set the list; readers learn of it if it differs."""
        if self._endpoints != tuple(endpoints):
            self._endpoints = tuple(endpoints)
            self._changed.set()

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list once it was set, and again after each change."""
        seen: Snapshot | None = None
        while True:
            self._changed.clear()
            if self._endpoints is not None and self._endpoints != seen:
                seen = self._endpoints
                yield seen
            else:
                await self._changed.wait()
