"""RecoveryProbes: measures with small requests when a server has recovered from overload."""

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.response_recorder import ResponseRecorder

PROBES = 5
PROBE_TOKENS = 16, 1
"""Prompt tokens and output tokens of a probe."""

PROBE_GAP_SECONDS = 0.25

NORMAL_RUN = 3
"""Number of consecutive normal probes that mean recovery."""

GIVE_UP_SECONDS = 90.0
QUEUEING_GIVE_UP_SECONDS = 600.0
"""Seconds after which no recovery is awaited any more, of a server that sheds load and of one that queues it."""


class RecoveryProbes:
    """Small requests that measure whether a server is as fast as when it was idle."""

    def __init__(self, client: Client, prepared: PreparedRequest, give_up_seconds: float = GIVE_UP_SECONDS) -> None:
        self._client = client
        self._prepared = prepared
        self._give_up_seconds = give_up_seconds
        self.baseline = 0.0

    @property
    def limit(self) -> float:
        """Longest duration of a normal probe in seconds: twice the idle server's, plus 50 ms."""
        return 2 * self.baseline + 0.05

    async def measure_baseline(self) -> None:
        """Measure the duration of a probe on the idle server."""
        latencies = [await self._probe() for _ in range(PROBES)]
        self.baseline = median(latencies[1:])  # the first probe may meet cold caches

    async def until_normal(self) -> float | None:
        """Return the seconds until the first of NORMAL_RUN consecutive normal probes.

        Returns None when there are none within the seconds after which it gives up.
        """
        started_at, sent = time.monotonic(), list[tuple[float, asyncio.Task[float]]]()
        try:
            while (now := time.monotonic() - started_at) < self._give_up_seconds:
                sent.append((now, asyncio.create_task(self._probe())))
                await asyncio.sleep(PROBE_GAP_SECONDS)
                if (recovered_at := self._first_run(sent)) is not None:
                    return recovered_at
            return None
        finally:
            for _, task in sent:
                task.cancel()
            await asyncio.gather(*(task for _, task in sent), return_exceptions=True)

    def _first_run(self, sent: Sequence[tuple[float, "asyncio.Task[float]"]]) -> float | None:
        """Return when the first of NORMAL_RUN consecutive normal probes was sent, or None."""
        run: list[float] = []
        for at, task in sent:
            if task.done() and task.result() <= self.limit:
                run.append(at)
            else:
                run.clear()
            if len(run) == NORMAL_RUN:
                return run[0]
        return None

    async def _probe(self) -> float:
        """Send a probe; returns its duration in seconds, infinity when it fails."""
        started_at = time.monotonic()
        record = HttpRequestRecord(due=0.0, sent=0.0)
        recorder = ResponseRecorder(record, started_at)
        recorder.end(await self._client.send(self._prepared.request, recorder, self._give_up_seconds))
        return record.ended if record.outcome is Outcome.OK else float("inf")
