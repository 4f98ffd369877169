"""Watchers of live data in tests: a stream of server-sent events, read event by event."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from chairlift.protocol.sse import EventReader
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.principal import ADMIN, Principal
from support_process import TIMEOUT_SECONDS

OPS = {"authorization": "Bearer ops"}
OPS_KEYS = KeyRing({
    hashlib.sha256(b"ops").digest(): Principal("ops", frozenset({ADMIN})),
    hashlib.sha256(b"user").digest(): Principal("alice"),
})  # fmt: skip


class LiveStream:
    """The events of one watcher."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._bytes = response.aiter_bytes()
        self._reader = EventReader()
        self._events: list[tuple[str, str]] = []

    async def next(self) -> tuple[str, str]:
        """Return name and data of the next event."""
        while not self._events:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                received = await anext(self._bytes)
            self._events += [(event.event, event.data) for event in self._reader.push(received)]
        return self._events.pop(0)

    async def next_data(self, name: str) -> Any:
        """Return the data of the next event of this name."""
        while True:
            event, data = await self.next()
            if event == name:
                return json.loads(data)


@asynccontextmanager
async def watching(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[LiveStream]:
    """Watch the live data of a server."""
    timeout = httpx.Timeout(10.0, read=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=timeout) as http,
        http.stream("GET", "/admin/live", headers=OPS if headers is None else headers) as response,
    ):
        yield LiveStream(response)
