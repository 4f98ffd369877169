"""MemoryWatch: samples a server's memory from its /metrics during a phase, if it has that endpoint."""

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
SAMPLE_INTERVAL_SECONDS = 1.0


def memory_of(page: str) -> dict[str, int]:
    """Return resident bytes by process; a process without a name is "server"."""
    return {result["name"] or "server": int(float(result["bytes"])) for result in LINE.finditer(page)}


class MemoryWatch:
    """Samples the memory every second while the context is entered; unreadable samples are left out."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._samples: list[dict[str, int]] = []

    async def __aenter__(self) -> Self:
        await self._sample()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        await asyncio.wait([self._watcher])
        if error is None:
            await self._sample()

    def result(self) -> dict[str, Any] | None:
        """Return the first, the largest and the last bytes of each process, None without samples."""
        if not self._samples:
            return None
        series: dict[str, list[int]] = {}
        for each in self._samples:
            for name, size in each.items():
                series.setdefault(name, []).append(size)
        return {name: {"first": sizes[0], "peak": max(sizes), "last": sizes[-1]} for name, sizes in series.items()}

    async def _watch(self) -> None:
        while self._samples:
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)
            await self._sample()

    async def _sample(self) -> None:
        try:
            status, page = await self._client.fetch("GET", "/metrics")
        except NoResponse:
            return
        if status == 200 and (memory := memory_of(page.decode("utf-8", "replace"))):
            self._samples.append(memory)
