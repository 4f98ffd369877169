"""Load generation: requests at their due times, whatever the answers do; or so many at a time, for a capacity.

open loop    due times come from a seed or a trace; nobody waits for anybody, and what is late is measured from when
             it was due, so that a slow server cannot slow down who measures it (coordinated omission)
closed loop  so many clients, each of which sends its next request when its last one is over
"""

import asyncio
import gc
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, Protocol, TypeVar

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.http_client import ExchangeEnd, ResponseHandler
from chairlift.bench.server.response_recorder import HttpRequestRecord, Outcome, ResponseRecorder

POISSON, EVEN = "poisson", "even"
BEAT_SECONDS = 0.02
RELUCTANCE_SECONDS = 0.1
"""That a client of a closed loop waits after an answer that was none, so that it does not ask all the time."""

GARBAGE_THRESHOLDS = 100_000, 50, 100
"""New objects after which those that hold each other are looked for among the youngest; and how often among others."""

Result = TypeVar("Result")


class RequestSender(Protocol):
    """Who sends requests."""

    async def ask(self, request: bytes, taker: ResponseHandler, seconds: float) -> ExchangeEnd:
        """Send one, and let the taker have the answer."""
        ...


def arrival_times(rate: float, kind: str, seed: str) -> Iterator[float]:
    """Yield when requests are due: as a Poisson process, or evenly; the same seed gives the same times."""
    rng, at = Random(f"arrivals {seed}"), 0.0
    while True:
        at += 1 / rate if kind == EVEN else -math.log1p(-rng.random()) / rate
        yield at


def with_arrival_times(
    shots: Iterator[PreparedRequest], times: Iterable[float], seconds: float, count: int | None
) -> Iterator[PreparedRequest]:
    """Yield shots at these times instead of their own: those before the end of the time, and at most `count`.

    No shot is drawn that is not sent. There must be as many as there are times.
    """
    for number, at in enumerate(times):
        if at >= seconds or number == count:
            return
        shot = next(shots)
        yield PreparedRequest(at, shot.request, shot.asked_tokens)


class LoadPhase:
    """One phase under way. Belongs to one event loop.

    Attributes:
        records: of every request that was sent, in that order, also while it is open.
        beats: seconds that the event loop was late, measured all the time: how late answers are noted.
    """

    def __init__(self, client: RequestSender, timeout: float) -> None:
        """Begin now; each request has `timeout` seconds."""
        self.records: list[HttpRequestRecord] = []
        self.beats: list[float] = []
        self._client = client
        self._timeout = timeout
        self._open: set[asyncio.Task[Any]] = set()
        self._fault: BaseException | None = None
        self._pulse = asyncio.create_task(self._beat())
        self._cpu_began = time.process_time()
        self._cpu_share: float | None = None
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self._began

    @property
    def cpu_share(self) -> float:
        """Of one core, that this process has used while it sent; since the phase began as long as it does so."""
        if self._cpu_share is not None:
            return self._cpu_share
        return (time.process_time() - self._cpu_began) / max(self.now, 1e-9)

    async def open_loop(self, shots: Iterable[PreparedRequest]) -> None:
        """Send each when it is due; returns when the last one is sent."""
        for shot in shots:
            while (left := shot.at - self.now) > 0:
                await asyncio.sleep(left)
            self._keep(self._send(shot))
            await asyncio.sleep(0)  # also when all are late: the answers want to be read
        self._cpu_share = self.cpu_share

    async def closed_loop(
        self, shots: Iterator[PreparedRequest], concurrency: int, seconds: float, count: int | None
    ) -> None:
        """Keep so many requests open, until the time is over or `count` are sent."""
        left = math.inf if count is None else count

        async def send_on() -> None:
            nonlocal left
            while left > 0 and self.now < seconds:
                left -= 1
                shot = next(shots)
                record = await self._send(PreparedRequest(self.now, shot.request, shot.asked_tokens))
                if record.outcome is not Outcome.OK:
                    await asyncio.sleep(RELUCTANCE_SECONDS)

        for _ in range(concurrency):
            self._keep(send_on())
        await self.settled()
        self._cpu_share = self.cpu_share

    async def settled(self) -> None:
        """Wait until nothing is open any more. Raises what is our own mistake."""
        while self._open:
            await asyncio.wait(self._open)
        if self._fault is not None:
            raise self._fault

    async def end(self) -> None:
        """Drop what is open, and stop the clock. Its records stay INTERRUPTED."""
        tasks = [*self._open, self._pulse]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._close)

    def _close(self, task: "asyncio.Task[object]") -> None:
        self._open.discard(task)
        if not task.cancelled():
            self._fault = self._fault or task.exception()

    async def _send(self, shot: PreparedRequest) -> HttpRequestRecord:
        record = HttpRequestRecord(due=shot.at, sent=self.now, asked_tokens=shot.asked_tokens)
        self.records.append(record)
        answer = ResponseRecorder(record, self._began)
        answer.end(await self._client.ask(shot.request, answer, self._timeout))
        return record

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)
            self.beats.append(max(0.0, time.monotonic() - before - BEAT_SECONDS))


def in_own_loop(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine in an event loop of its own, uvloop's where it is installed; Ctrl-C cancels it.

    Garbage is seldom looked for meanwhile: among the records of a phase that takes a tenth of a second, in which the
    generator would neither send nor read.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):  # it is not for every system
        from uvloop import new_event_loop as factory
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())
    finally:
        gc.set_threshold(*threshold)
