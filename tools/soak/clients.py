"""Clients: sends the traffic of a soak test, each request in its own task, and counts the results."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from soak.raw_client import Outcome, RequestResult, send_request
from soak.request_mix import SoakRequest, make_capacity_request, make_request
from soak.soak_server import KEYS

MAX_OPEN_REQUESTS = 300
TOO_MANY_REQUESTS = 429
MAX_UNEXPECTED = 4096
"""Number of unexpected results that are kept for the verdict."""


@dataclass(slots=True)
class Tally:
    """The results of all requests.

    Attributes:
        counts: (kind of the request, summary of its result) -> number; all bad input is one kind.
        unexpected: the last requests whose results the verdict examines, with these results.
        num_dropped: number of unexpected results that later ones displaced.
        num_delayed: number of requests that were sent late because too many were open.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unexpected: deque[tuple[SoakRequest, RequestResult]] = field(default_factory=lambda: deque(maxlen=MAX_UNEXPECTED))
    num_dropped: int = 0
    num_delayed: int = 0

    def add(self, request: SoakRequest, result: RequestResult) -> None:
        """Count a result."""
        kind = "bad input" if request.kind.startswith("bad: ") else request.kind
        summary = f"{result.outcome if result.status in (0, 200) else result.status} {result.code}".strip()
        self.counts[kind, summary] += 1
        if is_unexpected(request, result):
            self.num_dropped += len(self.unexpected) == MAX_UNEXPECTED
            self.unexpected.append((request, result))

    @property
    def total(self) -> int:
        """Number of requests that have ended."""
        return sum(self.counts.values())


def is_unexpected(request: SoakRequest, result: RequestResult) -> bool:
    """Return whether the verdict has to examine a result; the many expected results are only counted."""
    if result.outcome not in request.outcomes:
        return True
    if result.outcome is Outcome.ERROR_EVENT:
        return result.code != "timeout" or 408 not in request.statuses
    return result.status not in (0, TOO_MANY_REQUESTS, *request.statuses)


class Clients:
    """Sends requests that follow from the seed and their number."""

    def __init__(self, port: int, seed: int) -> None:
        self.tally = Tally()
        self._port = port
        self._seed = seed
        self._rng = Random(seed)
        self._num_sent = 0
        self._open: set[asyncio.Task[None]] = set()

    async def run_closed_loop(self, seconds: float, num_clients: int = 8) -> float:
        """Run clients that each send one request after another; returns requests per second."""
        started_at, count = time.monotonic(), 0

        async def run_client() -> None:
            nonlocal count
            while time.monotonic() < started_at + seconds:
                self._num_sent += 1
                await self._send(make_capacity_request(self._seed, self._num_sent, self._key()))
                count += 1

        await asyncio.gather(*[run_client() for _ in range(num_clients)])
        return count / (time.monotonic() - started_at)

    async def run_open_loop(self, rate: float, until: float) -> None:
        """Start `rate` requests per second on average, as a Poisson process, until a monotonic time."""
        at = time.monotonic()
        while (at := at + self._rng.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await self._start_request()

    async def send_burst(self, count: int) -> None:
        """Start requests without a pause between them."""
        for _ in range(count):
            await self._start_request()

    async def wait_until_done(self) -> None:
        """Wait until all requests have ended."""
        while self._open:
            await asyncio.wait(set(self._open))

    async def _start_request(self) -> None:
        if len(self._open) >= MAX_OPEN_REQUESTS:
            self.tally.num_delayed += 1
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
        self._num_sent += 1
        task = asyncio.create_task(self._send(make_request(self._seed, self._num_sent, self._key())))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _send(self, request: SoakRequest) -> None:
        result = await send_request(
            self._port, request.data, behavior=request.behavior, delay_seconds=request.delay_seconds,
            timeout_seconds=request.timeout_seconds,
        )  # fmt: skip
        self.tally.add(request, result)

    def _key(self) -> str:
        return list(KEYS)[self._num_sent % len(KEYS)]
