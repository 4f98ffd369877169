"""BatchSlots: lets requests of batches begin where they take no place from other requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from chairlift.web.auth.principal import Principal
from chairlift.web.request_info import RequestInfo

POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 10.0
"""Seconds after which one request of a batch begins although others wait, so that a busy server ends its batches."""


class Room(Protocol):
    """What a service knows of its load."""

    def is_ready(self) -> bool:
        """Return whether requests are served."""
        ...

    def has_room(self, num_unstarted: int) -> bool:
        """Return whether a request may begin while `num_unstarted` ones of batches have no output yet."""
        ...


class BatchSlots:
    """Bounds the requests of all batches together. Belongs to one event loop."""

    def __init__(self, max_requests: int, room: Room, now: Callable[[], float] | None = None) -> None:
        """Allow at most `max_requests` open requests; `now` is the loop's clock by default."""
        self._semaphore, self._turn = asyncio.Semaphore(max_requests), asyncio.Lock()
        self._room = room
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._open: dict[int, RequestInfo] = {}
        self._is_stopped = False

    @property
    def num_unstarted(self) -> int:
        """Open requests of batches that have no output yet."""
        return sum(info.permit is None or info.permit.is_waiting for info in self._open.values())

    def stop(self) -> None:
        """Let no further request begin; those that are open go on."""
        self._is_stopped = True

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until a request may begin; batches take turns. The request must be sent at once."""
        async with self._semaphore:
            async with self._turn:
                await self._wait_for_room()
            yield

    @contextmanager
    def opened(self, tenant: str) -> Iterator[RequestInfo]:
        """Return the RequestInfo of a request for a tenant, which is counted until the context ends."""
        info = RequestInfo(principal=Principal(tenant))
        self._open[id(info)] = info
        try:
            yield info
        finally:
            del self._open[id(info)]

    async def _wait_for_room(self) -> None:
        begun_at = self._now()
        while not self._may_begin(self._now() - begun_at):
            await asyncio.sleep(POLL_SECONDS)

    def _may_begin(self, waited_seconds: float) -> bool:
        if self._is_stopped or not self._room.is_ready():
            return False
        return self._room.has_room(self.num_unstarted) or waited_seconds >= LONGEST_WAIT_SECONDS
