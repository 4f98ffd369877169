"""AsyncLLM: the text service for coroutines; streams the text events of each request."""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from chairlift.core.load_report import LoadReport
from chairlift.core.output_collector import OutputCollector
from chairlift.core.request import EngineOutput
from chairlift.core.sampling import SamplingParams
from chairlift.engine.stats import CacheState, SchedulerState
from chairlift.llm.batch_run import forward_aborts
from chairlift.llm.build import build_service
from chairlift.llm.options import Options
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import TextEvent
from chairlift.llm.text_service import Message, ModelDefaults, Prompt, Resume, TextService

BATCHED_OUTPUTS = 64
"""Unread outputs of a choice that wake the reader even when it waits only for the end."""

WAKEUPS_PER_ITERATION = 32
"""Readers to wake in one iteration of the event loop; other tasks, new requests too, run before the next ones."""


class _OutputInbox:
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


class _OutputDispatcher:
    """Passes the outputs of steps to one event loop, grouped by request, with one wake-up for several.

    Hundreds of readers take milliseconds per step, so they are woken in batches, one batch per loop iteration.
    The engine calls `sink`; everything else belongs to the event loop, which the dispatcher does not keep alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stream_interval: Callable[[], float]) -> None:
        self._loop = weakref.ref(loop)
        self._stream_interval = stream_interval
        self._quiet_until = 0.0  # on the loop's clock
        self._inboxes: dict[str, _OutputInbox] = {}
        self._lock = threading.Lock()
        self._arrived: list[EngineOutput] = []
        self._readers_to_wake: dict[_OutputInbox, None] = {}  # inboxes with outputs, in order
        self._is_waking = False
        self.sink = self._from_engine

    def open(self, request_id: str, inbox: _OutputInbox) -> None:
        self._inboxes[request_id] = inbox

    def close(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)

    @property
    def open_ids(self) -> list[str]:
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


class AsyncLLM:
    """A loaded model for coroutines. Use `async with`, or call close().

    The constructor loads the model and blocks; a server calls it in a thread.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[Options]) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        Without a model the log names the one that runs. Raises ModelError when the model cannot be loaded, ConfigError
        for an invalid option.
        """
        self._start(build_service(model, options))

    @classmethod
    def from_service(cls, service: TextService, stream_interval: Callable[[], float] = lambda: 0.0) -> Self:
        """Create an AsyncLLM over a running service.

        After each delivery to the readers, `stream_interval` returns the seconds until the next one; outputs that
        arrive meanwhile are delivered together. The API server uses it while it rejects many requests, so that it
        writes streams less often. The engine server's output_interval is independent of it: it applies in the engine
        process, to clients that share the engine's CPUs.
        """
        llm = cls.__new__(cls)
        llm._start(service, stream_interval)
        return llm

    def _start(self, service: TextService, stream_interval: Callable[[], float] = lambda: 0.0) -> None:
        self._service, self._stream_interval = service, stream_interval
        self._dispatchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OutputDispatcher] = (
            weakref.WeakKeyDictionary()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop the engine; open requests end with EngineDead. May be called more than once."""
        self._service.client.close()

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (),
    ) -> AsyncGenerator[TextEvent, None]:  # fmt: skip
        """Complete a prompt (a string or token ids); yields events until one `is_final`.

        `resume` has, for each choice, the output tokens that were delivered before; events continue after them.
        Closing the iterator early (contextlib.aclosing guarantees it), or cancelling its task, aborts the request.
        Raises InvalidRequest at the call when the request can never be served.
        """
        return self._stream(
            self._service.prepare_completion(
                prompt, params, request_id=request_id, priority=priority, tenant=tenant, timeout=timeout, resume=resume
            )
        )

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (),
        tools: Sequence[Message] | None = None,
    ) -> AsyncGenerator[TextEvent, None]:  # fmt: skip
        """Complete a conversation by the model's chat template, with optional tools; like `generate`."""
        return self._stream(
            self._service.prepare_chat(
                messages,
                params,
                request_id=request_id,
                priority=priority,
                tenant=tenant,
                timeout=timeout,
                resume=resume,
                tools=tools,
            )
        )

    async def _stream(self, processor: OutputProcessor) -> AsyncGenerator[TextEvent, None]:
        async with aclosing(self.run([processor])) as batches:
            async for batch in batches:
                for _, event in batch:
                    yield event

    async def run(
        self, processors: Sequence[OutputProcessor], *, at_once: bool = True
    ) -> AsyncGenerator[list[tuple[int, TextEvent]], None]:  # fmt: skip
        """Run prepared requests (see TextService) together and yield their events in batches.

        Each batch has the events since the last one as (index of the processor, event), in order. It may be empty
        when outputs gave no certain text yet. The iterator ends after the final event of each request.
        Without `at_once` the first outputs are delivered immediately and later ones together, which costs less when
        the client waits only for the end.
        Closing the iterator early aborts the open requests. Raises the engine's immediate rejection.
        """
        dispatcher, client = self._dispatcher(), self._service.client
        inbox = _OutputInbox(asyncio.get_running_loop())
        open_requests: dict[str, int] = {}
        at_once = at_once or any(each.request.params.stop for each in processors)  # the engine cannot see stops
        is_first = True
        try:
            for number, processor in enumerate(processors):
                request_id = processor.request.request_id
                client.submit(processor.validated, dispatcher.sink)
                open_requests[request_id] = number
                dispatcher.open(request_id, inbox)
                forward_aborts(client, processor)
            while open_requests:
                batch: list[tuple[int, TextEvent]] = []
                outputs = await inbox.take(at_once=at_once or is_first)
                is_first = False
                for output in outputs:
                    if (number := open_requests.get(output.request_id, -1)) < 0:
                        continue
                    processor = processors[number]
                    batch += [(number, event) for event in processor.process(output)]
                    if output.is_final:
                        self._unregister(dispatcher, open_requests, output.request_id)
                    elif processor.is_finished:
                        self._unregister(dispatcher, open_requests, output.request_id)
                        client.abort(output.request_id)
                    elif processor.pending_aborts:
                        forward_aborts(client, processor)
                yield batch
        finally:
            for request_id in list(open_requests):
                self._unregister(dispatcher, open_requests, request_id)
                client.abort(request_id)

    def abort_all(self) -> int:
        """Abort all open requests of this event loop, with finish_reason "abort". Returns how many."""
        open_ids = self._dispatcher().open_ids
        for request_id in open_ids:
            self._service.client.abort(request_id)
        return len(open_ids)

    def _unregister(self, dispatcher: _OutputDispatcher, open_requests: dict[str, int], request_id: str) -> None:
        del open_requests[request_id]
        dispatcher.close(request_id)

    def _dispatcher(self) -> _OutputDispatcher:
        loop = asyncio.get_running_loop()
        if loop not in self._dispatchers:
            self._dispatchers[loop] = _OutputDispatcher(loop, self._stream_interval)
        return self._dispatchers[loop]

    # -- introspection ---------------------------------------------------------------------------------------------

    @property
    def defaults(self) -> ModelDefaults:
        """The model's defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def report(self) -> dict[str, str]:
        """Derived settings and the duration of each startup phase."""
        return dict(self._service.client.info.startup_report)

    async def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order and with the reason, and the running ones."""
        return await asyncio.to_thread(self._service.client.scheduler_state)

    async def cache_state(self) -> CacheState:
        """Return the counts of the KV block pool."""
        return await asyncio.to_thread(self._service.client.cache_state)

    async def check_integrity(self) -> list[str]:
        """Check the engine's invariants; return the violations, an empty list when there are none."""
        return await asyncio.to_thread(self._service.client.check_integrity)

    async def warmup(self) -> float:
        """Run the largest steps, and one of each size, before the first request; return the seconds taken.

        Changes no token, block or counter.
        """
        return await asyncio.to_thread(self._service.client.warmup)

    async def load(self) -> LoadReport:
        """Return the engine's load."""
        return await asyncio.to_thread(self._service.client.load)
