"""Server memory: what a server's /metrics say of it while it is measured, where it has some."""

import asyncio
import re
from types import TracebackType
from typing import Any, Self

from chairlift.bench.server.http_client import Client, NoResponse

LINE = re.compile(
    r'^(?:chairlift_process_memory_bytes\{process="(?P<name>\w+)"\}|process_resident_memory_bytes) '
    r"(?P<bytes>[\d.e+]+)$",
    re.MULTILINE,
)
LOOK_SECONDS = 1.0


def memory_of(page: str) -> dict[str, int]:
    """Return resident bytes by process; one that has no name is "server"."""
    return {found["name"] or "server": int(float(found["bytes"])) for found in LINE.finditer(page)}


class MemoryWatch:
    """While it is entered, looks every second. What cannot be read is not there."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: list[dict[str, int]] = []

    async def __aenter__(self) -> Self:
        await self._look()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        await asyncio.wait([self._watcher])
        if error is None:
            await self._look()

    def found(self) -> dict[str, Any] | None:
        """Return the first, the largest and the last bytes of each process; None where nothing was said."""
        if not self._seen:
            return None
        series: dict[str, list[int]] = {}
        for each in self._seen:
            for name, size in each.items():
                series.setdefault(name, []).append(size)
        return {name: {"first": sizes[0], "peak": max(sizes), "last": sizes[-1]} for name, sizes in series.items()}

    async def _watch(self) -> None:
        while self._seen:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        try:
            status, page = await self._client.fetch("GET", "/metrics")
        except NoResponse:
            return
        if status == 200 and (memory := memory_of(page.decode("utf-8", "replace"))):
            self._seen.append(memory)
