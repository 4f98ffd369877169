"""OutputDispatcher: passes the engine's outputs to the readers of one event loop."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from itertools import islice

from chairlift.core.engine_output import EngineOutput
from chairlift.core.output_collector import OutputCollector

BATCHED_OUTPUTS = 64
"""Unread outputs of a choice that wake the reader even when it waits only for the end."""

WAKEUPS_PER_ITERATION = 32
"""Readers to wake in one iteration of the event loop; other tasks, new requests too, run before the next ones."""


class OutputInbox:
    """Holds the unread outputs of some requests. Belongs to one event loop.

    A reader that is slower than the engine gets one merged EngineOutput per choice.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._collector = OutputCollector()
        self._reader: asyncio.Future[None] | None = None
        self._is_due = False
        self._at_once = True

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the outputs that are here."""
        return self._reader is not None and not self._reader.done() and (self._is_due or self._at_once)

    def wake(self) -> None:
        """Wake the waiting reader."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def put(self, output: EngineOutput) -> None:
        """Add an output."""
        unread = self._collector.put(output)
        self._is_due = self._is_due or output.is_final or unread >= BATCHED_OUTPUTS

    async def take(self, *, at_once: bool) -> list[EngineOutput]:
        """Wait for outputs and return all.

        Without `at_once`, wait for a final output or for BATCHED_OUTPUTS of a choice.
        """
        self._at_once = at_once
        while not (self._is_due or (at_once and self._collector)):
            self._reader = self._loop.create_future()
            await self._reader
        self._is_due = False
        return self._collector.drain()


class OutputDispatcher:
    """Passes the outputs of steps to one event loop, grouped by request, with one wake-up for several.

    Hundreds of readers take milliseconds per step, so they are woken in batches, one batch per loop iteration.
    The engine calls `sink`; everything else belongs to the event loop, which the dispatcher does not keep alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stream_interval: Callable[[], float]) -> None:
        self._loop = weakref.ref(loop)
        self._stream_interval = stream_interval
        self._quiet_until = 0.0  # on the loop's clock
        self._inboxes: dict[str, OutputInbox] = {}
        self._lock = threading.Lock()
        self._arrived: list[EngineOutput] = []
        self._readers_to_wake: dict[OutputInbox, None] = {}  # inboxes with outputs, in order
        self._is_waking = False
        self.sink = self._from_engine

    def open(self, request_id: str, inbox: OutputInbox) -> None:
        """Pass the outputs of a request to this inbox."""
        self._inboxes[request_id] = inbox

    def close(self, request_id: str) -> None:
        """Drop further outputs of a request."""
        self._inboxes.pop(request_id, None)

    @property
    def open_ids(self) -> list[str]:
        """The ids of the requests whose outputs are passed on."""
        return list(self._inboxes)

    def _from_engine(self, outputs: list[EngineOutput]) -> None:
        with self._lock:
            is_first = not self._arrived
            self._arrived += outputs
        loop = self._loop()
        if is_first and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._schedule_delivery)

    def _schedule_delivery(self) -> None:
        """Deliver the arrived outputs, now or when the quiet interval ends."""
        loop = self._loop()
        if loop is None:
            return
        if loop.time() < self._quiet_until:
            loop.call_at(self._quiet_until, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Deliver the arrived outputs and start the next quiet interval."""
        self._sort_arrived()
        if (loop := self._loop()) is not None:
            self._quiet_until = loop.time() + self._stream_interval()

    def _sort_arrived(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for output in arrived:
            inbox = self._inboxes.get(output.request_id)
            if inbox is not None:
                inbox.put(output)
                if inbox.is_awaited:
                    self._readers_to_wake[inbox] = None
        if not self._is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for inbox in list(islice(self._readers_to_wake, WAKEUPS_PER_ITERATION)):
            del self._readers_to_wake[inbox]
            inbox.wake()
        loop = self._loop()
        self._is_waking = bool(self._readers_to_wake) and loop is not None
        if self._is_waking and loop is not None:
            loop.call_soon(self._wake_some)
