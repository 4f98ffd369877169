"""RequestHold: keeps requests while no replica is ready, and asks for a replica (scale from zero).

request ──► wait() ──► held_requests, on_hold ──► autoscaler: 0 → 1 ──► a replica is ready ──► the request goes on
               └─ after hold_seconds, or if a start takes longer: 503 with Retry-After
"""

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median

from chairlift.core.clock import Clock
from chairlift.core.errors import RequestTimeout, Unavailable
from chairlift.core.load_report import ReplicaState

CHECK_SECONDS = 0.02
"""Seconds between two checks for a ready replica, while requests wait."""

IDLE_CHECK_SECONDS = 0.1
"""The same while none waits, but one was rejected a short time ago."""

FORGET_SECONDS = 60.0
"""Time without any request after which the time of the start is not learnt: it may be a long outage."""

MAX_START_SECONDS = 900.0
"""Longer times without a ready replica are outages, not starts."""

NUM_LEARNT_STARTS = 9
MAX_RETRY_SECONDS = 600.0
MIN_RETRY_SECONDS = 1.0

NO_REPLICA_YET = "no replica is ready; one is being started"


class RequestHold:
    """The requests that wait for the first replica. Belongs to one event loop.

    Attributes:
        on_hold: called when a request begins to wait, so that a replica is started at once.
    """

    def __init__(self, hold_seconds: float, is_ready: Callable[[], bool], clock: Clock) -> None:
        """Hold requests for `hold_seconds` at most; `is_ready` says whether a replica is."""
        self.on_hold: Callable[[], None] = lambda: None
        self._hold_seconds, self._is_ready, self._clock = hold_seconds, is_ready, clock
        self._starts: deque[float] = deque(maxlen=NUM_LEARNT_STARTS)
        self._waiting_since: float | None = None
        self._asked_at = 0.0
        self._held: dict[asyncio.Future[None], int] = {}
        self._checks: asyncio.Task[None] | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether requests are held at all."""
        return self._hold_seconds > 0

    @property
    def num_requests(self) -> int:
        """Requests that wait now."""
        return len(self._held)

    @property
    def num_tokens(self) -> int:
        """Their prompt tokens, estimated."""
        return sum(self._held.values())

    @property
    def start_seconds(self) -> float | None:
        """Median of the recent times from the first request without a replica to a ready one; None before any."""
        return median(self._starts) if self._starts else None

    async def wait(self, num_tokens: int, timeout: float | None = None) -> None:
        """Return when a replica is ready.

        Raises Unavailable after the hold time, and at once where earlier starts took longer than that; it says when to
        come back. Raises RequestTimeout after `timeout`, the request's own.
        """
        if self._is_ready():
            return
        now = self._asked_at = self._clock.now()
        if self._waiting_since is None:
            self._waiting_since = now
        if self._checks is None:
            self._checks = asyncio.get_running_loop().create_task(self._check())
        self.on_hold()
        remaining = self._remaining_seconds(now)
        if remaining is not None and remaining > self._hold_seconds:
            raise self.unavailable()
        ready = asyncio.get_running_loop().create_future()
        self._held[ready] = num_tokens
        try:
            async with asyncio.timeout(self._hold_seconds if timeout is None else min(timeout, self._hold_seconds)):
                await ready
        except TimeoutError:
            if timeout is not None and timeout < self._hold_seconds:
                raise RequestTimeout(timeout) from None
            raise self.unavailable() from None
        finally:
            del self._held[ready]

    def close(self) -> None:
        """End the wait of all requests with Unavailable."""
        if self._checks is not None:
            self._checks.cancel()
        for ready in list(self._held):
            if not ready.done():
                ready.set_exception(Unavailable("the router stops", state="draining", retry_after=MIN_RETRY_SECONDS))

    async def _check(self) -> None:
        """Release all requests when a replica is ready; ends then, or when no request has come for a time."""
        is_known = True
        while is_known and not self._is_ready():
            await asyncio.sleep(CHECK_SECONDS if self._held else IDLE_CHECK_SECONDS)
            is_known = bool(self._held) or self._clock.now() - self._asked_at < FORGET_SECONDS
        assert self._waiting_since is not None
        seconds = self._clock.now() - self._waiting_since
        self._waiting_since = self._checks = None
        if is_known and seconds <= MAX_START_SECONDS:
            self._starts.append(seconds)
        for ready in list(self._held):
            if not ready.done():
                ready.set_result(None)

    def _remaining_seconds(self, now: float) -> float | None:
        """Return when a replica will probably be ready; None if no start was seen yet."""
        expected = self.start_seconds
        if expected is None or self._waiting_since is None:
            return None
        return max(0.0, expected - (now - self._waiting_since))

    def unavailable(self) -> Unavailable:
        """Return the error of a request that is not held, or not any longer."""
        remaining = self._remaining_seconds(self._clock.now())
        seconds = self._hold_seconds if remaining is None else remaining
        retry_after = min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
        return Unavailable(NO_REPLICA_YET, state=str(ReplicaState.STARTING), retry_after=retry_after)
