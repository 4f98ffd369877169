"""LoadReader: asks replicas for their load reports, all at once."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from chairlift.router.endpoint import Endpoint
from chairlift.router.health.probe import LOAD, ProbeFailed, ReplicaClient
from chairlift.router.health.replica_load import ReplicaLoad, parse_load

MAX_OPEN_REQUESTS = 256
"""Replicas that are asked at a time."""


class LoadReader:
    """Reads /load of replicas. Belongs to one event loop."""

    def __init__(
        self, session: aiohttp.ClientSession, headers: Callable[[], Mapping[str, str]], timeout_seconds: float = 2.0
    ) -> None:
        """Ask with these headers; a replica that does not answer in time has no report."""
        self._session, self._headers, self._timeout_seconds = session, headers, timeout_seconds
        self._slots = asyncio.Semaphore(MAX_OPEN_REQUESTS)

    async def read(self, urls: Sequence[str], now: float) -> Mapping[str, ReplicaLoad]:
        """Return the reports by URL, without those that did not come or are not valid."""
        reports = await asyncio.gather(*(self._read(url, now) for url in urls))
        return {url: report for url, report in zip(urls, reports, strict=True) if report is not None}

    async def _read(self, url: str, now: float) -> ReplicaLoad | None:
        client = ReplicaClient(
            session=self._session, endpoint=Endpoint(url=url), timeout_seconds=self._timeout_seconds,
            headers=self._headers(),
        )  # fmt: skip
        try:
            async with self._slots:
                status, _, body = await client.get(LOAD)
            return parse_load(json.loads(body), now) if status == 200 else None
        except (ProbeFailed, ValueError, RecursionError):
            return None
