"""Discovery sources for tests: reading of snapshots with a time limit, and scripted sources."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import DiscoverySource, Snapshot
from chairlift.router.endpoint import Endpoint

WAIT_SECONDS = 10.0
"""Longest wait for a snapshot. Only a failing test waits this long."""


def urls(snapshot: Sequence[Endpoint]) -> list[str]:
    return [endpoint.url for endpoint in snapshot]


class SnapshotReader:
    """Reads the snapshots of a source."""

    def __init__(self, snapshots: AsyncGenerator[Snapshot, None]) -> None:
        self._snapshots = snapshots

    async def next(self, seconds: float = WAIT_SECONDS) -> Snapshot:
        async with asyncio.timeout(seconds):
            return await anext(self._snapshots)

    async def until(self, is_wanted: Callable[[Snapshot], bool], seconds: float = WAIT_SECONDS) -> Snapshot:
        async with asyncio.timeout(seconds):
            while not is_wanted(snapshot := await anext(self._snapshots)):
                pass
        return snapshot


@asynccontextmanager
async def watching(source: DiscoverySource) -> AsyncIterator[SnapshotReader]:
    snapshots = source.watch()
    try:
        yield SnapshotReader(snapshots)
    finally:
        await snapshots.aclose()


class ScriptedSource:
    """A source that yields what a test puts in; an error is raised, and ends the watch."""

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.num_watches = 0
        self._items: asyncio.Queue[Snapshot | Exception | None] = asyncio.Queue()

    def put(self, *urls_or_errors: str | Exception) -> None:
        if urls_or_errors and isinstance(urls_or_errors[0], Exception):
            self._items.put_nowait(urls_or_errors[0])
        else:
            self._items.put_nowait(tuple(Endpoint.parse(str(url)) for url in urls_or_errors))

    def end(self) -> None:
        self._items.put_nowait(None)

    def fail(self, reason: str = "it is down") -> None:
        self.put(DiscoveryFailed(reason))

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        self.num_watches += 1
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


async def eventually(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition is true; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
