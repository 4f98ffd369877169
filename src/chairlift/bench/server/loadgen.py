"""LoadPhase: sends requests at their due times (open loop) or with a fixed concurrency (closed loop).

open loop    due times come from a seed or a trace and do not depend on responses; latencies count from the due time,
             so that a slow server cannot slow down the generator (coordinated omission)
closed loop  a fixed number of clients, each of which sends its next request when its last one has ended
"""

import asyncio
import gc
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.http_client import ExchangeEnd, ResponseHandler
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.response_recorder import ResponseRecorder

POISSON, EVEN = "poisson", "even"
LAG_INTERVAL_SECONDS = 0.02
RETRY_PAUSE_SECONDS = 0.1
"""Pause of a closed-loop client after a failed or rejected request, so that it does not retry in a busy loop."""

GC_THRESHOLDS = 100_000, 50, 100
"""Thresholds of gc.set_threshold() during a run; large, so that collections are rare."""

Result = TypeVar("Result")


class RequestSender(Protocol):
    """Sends requests to a server."""

    async def send(self, request: bytes, handler: ResponseHandler, seconds: float) -> ExchangeEnd:
        """Send a request and pass the response to the handler."""
        ...


class LoadPhase:
    """A running phase of load; it belongs to one event loop.

    Attributes:
        records: a record of every request, in the order of sending; open requests are included.
        loop_lags: seconds by which the event loop was late, measured all the time; responses are recorded as late.
    """

    def __init__(self, client: RequestSender, timeout: float) -> None:
        """Start the phase now; each request has `timeout` seconds."""
        self.records: list[HttpRequestRecord] = []
        self.loop_lags: list[float] = []
        self._client = client
        self._timeout = timeout
        self._open: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None
        self._lag_task = asyncio.create_task(self._measure_loop_lag())
        self._cpu_started_at = time.process_time()
        self._cpu_share: float | None = None
        self._started_at = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start of the phase."""
        return time.monotonic() - self._started_at

    @property
    def cpu_share(self) -> float:
        """Share of one core that this process used while it sent requests, or has used so far."""
        if self._cpu_share is not None:
            return self._cpu_share
        return (time.process_time() - self._cpu_started_at) / max(self.now, 1e-9)

    async def open_loop(self, requests: Iterable[PreparedRequest]) -> None:
        """Send each request when it is due; returns when the last one is sent."""
        for prepared in requests:
            while (remaining := prepared.at - self.now) > 0:
                await asyncio.sleep(remaining)
            self._start_task(self._send(prepared))
            await asyncio.sleep(0)  # lets responses be read even when all requests are late
        self._cpu_share = self.cpu_share

    async def closed_loop(
        self, requests: Iterator[PreparedRequest], concurrency: int, seconds: float, count: int | None
    ) -> None:
        """Keep `concurrency` requests open until `seconds` have passed or `count` requests are sent."""
        remaining = math.inf if count is None else count

        async def run_client() -> None:
            nonlocal remaining
            while remaining > 0 and self.now < seconds:
                remaining -= 1
                prepared = next(requests)
                record = await self._send(PreparedRequest(self.now, prepared.request, prepared.requested_tokens))
                if record.outcome is not Outcome.OK:
                    await asyncio.sleep(RETRY_PAUSE_SECONDS)

        for _ in range(concurrency):
            self._start_task(run_client())
        await self.wait_until_done()
        self._cpu_share = self.cpu_share

    async def wait_until_done(self) -> None:
        """Wait until no request is open.

        Raises an exception of the generator's own tasks.
        """
        while self._open:
            await asyncio.wait(self._open)
        if self._error is not None:
            raise self._error

    async def end(self) -> None:
        """Cancel open requests and stop measuring; records of open requests stay INTERRUPTED."""
        tasks = [*self._open, self._lag_task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_task(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._close)

    def _close(self, task: "asyncio.Task[object]") -> None:
        self._open.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()

    async def _send(self, prepared: PreparedRequest) -> HttpRequestRecord:
        record = HttpRequestRecord(due=prepared.at, sent=self.now, requested_tokens=prepared.requested_tokens)
        self.records.append(record)
        recorder = ResponseRecorder(record, self._started_at)
        recorder.end(await self._client.send(prepared.request, recorder, self._timeout))
        return record

    async def _measure_loop_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            self.loop_lags.append(max(0.0, time.monotonic() - before - LAG_INTERVAL_SECONDS))


def in_own_loop(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine in a new event loop, uvloop's if it is installed; Ctrl-C cancels it.

    The garbage collector runs rarely meanwhile: over the records of a phase, a collection takes a tenth of a second, in
    which the generator would neither send nor read.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):  # uvloop does not exist for every system
        from uvloop import new_event_loop as factory
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())
    finally:
        gc.set_threshold(*threshold)
