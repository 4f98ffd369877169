"""AsyncLLM: one request in, its text events out as they come; the text service for servers."""

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
from chairlift.llm.batch_run import tell_aborts
from chairlift.llm.build import build_service
from chairlift.llm.options import Options
from chairlift.llm.output_processor import Assembler
from chairlift.llm.outputs import TextEvent
from chairlift.llm.text_service import Message, ModelDefaults, Prompt, Resume, Service

UNREAD = 64
"""Outputs of a choice after which they are read, also where only the end matters."""

PORTION = 32
"""Readers that are woken in one turn of the event loop; in the next one others have their turn, new requests too."""


class _Box:
    """What the engine has said of some requests and nobody has read yet. Belongs to one event loop.

    A reader that is slower than the engine finds all that a choice has to say in one Output.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news = OutputCollector()
        self._reader: asyncio.Future[None] | None = None
        self._is_due = False
        self._at_once = True

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for what is there."""
        return self._reader is not None and not self._reader.done() and (self._is_due or self._at_once)

    def wake(self) -> None:
        """Let who waits take it."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def put(self, output: EngineOutput) -> None:
        """Take news in."""
        unread = self._news.put(output)
        self._is_due = self._is_due or output.is_final or unread >= UNREAD

    async def take(self, *, at_once: bool) -> list[EngineOutput]:
        """Wait until there is something, and take all of it; without `at_once`, until it is the end or a lot."""
        self._at_once = at_once
        while not (self._is_due or (at_once and self._news)):
            self._reader = self._loop.create_future()
            await self._reader
        self._is_due = False
        return self._news.drain()


class _Mailroom:
    """Brings a step's outputs into one event loop, and sorts them there; one wake-up for all that came since the last.

    Hundreds of readers have milliseconds of work with a step, so they are woken in portions, each after the last.
    `sink` is what the engine calls; everything else belongs to the event loop, which it does not keep alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, spacing: Callable[[], float]) -> None:
        self._loop = weakref.ref(loop)
        self._spacing = spacing
        self._quiet_until = 0.0  # on the loop's clock
        self._boxes: dict[str, _Box] = {}
        self._lock = threading.Lock()
        self._arrived: list[EngineOutput] = []
        self._sleepers: dict[_Box, None] = {}  # with news, in order
        self._is_waking = False
        self.sink = self._from_engine

    def open(self, request_id: str, box: _Box) -> None:
        self._boxes[request_id] = box

    def close(self, request_id: str) -> None:
        self._boxes.pop(request_id, None)

    @property
    def open_ids(self) -> list[str]:
        return list(self._boxes)

    def _from_engine(self, outputs: list[EngineOutput]) -> None:
        with self._lock:
            is_first = not self._arrived
            self._arrived += outputs
        loop = self._loop()
        if is_first and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._come)

    def _come(self) -> None:
        """Sort what has come, now or when it is time for news again."""
        loop = self._loop()
        if loop is None:
            return
        if loop.time() < self._quiet_until:
            loop.call_at(self._quiet_until, self._tell)
        else:
            self._tell()

    def _tell(self) -> None:
        """Sort what has come, and let it be quiet for a while."""
        self._sort()
        if (loop := self._loop()) is not None:
            self._quiet_until = loop.time() + self._spacing()

    def _sort(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for output in arrived:
            box = self._boxes.get(output.request_id)
            if box is not None:
                box.put(output)
                if box.is_awaited:
                    self._sleepers[box] = None
        if not self._is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for box in list(islice(self._sleepers, PORTION)):
            del self._sleepers[box]
            box.wake()
        loop = self._loop()
        self._is_waking = bool(self._sleepers) and loop is not None
        if self._is_waking and loop is not None:
            loop.call_soon(self._wake_some)


class AsyncLLM:
    """A model that is loaded and ready, for coroutines. Use `async with`, or call close().

    Loading happens in the constructor and blocks; a server calls it in a thread.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[Options]) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        Without a model the log says which one runs. Raises ModelError when it cannot be loaded, ConfigError for an
        impossible option.
        """
        self._start(build_service(model, options))

    @classmethod
    def over(cls, service: Service, spacing: Callable[[], float] = lambda: 0.0) -> Self:
        """Make an AsyncLLM over a service that runs already.

        `spacing` is asked, each time that there were news, how many seconds there shall be none; what comes meanwhile
        is told together. A process with more urgent work can so make less of this.
        """
        made = cls.__new__(cls)
        made._start(service, spacing)
        return made

    def _start(self, service: Service, spacing: Callable[[], float] = lambda: 0.0) -> None:
        self._service, self._spacing = service, spacing
        self._mailrooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailroom] = weakref.WeakKeyDictionary()

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
        """Complete a prompt (a string or token ids); yields events until one `is_last`.

        With `resume`, for each choice the output tokens that were delivered before, events go on behind them.
        Closing the iterator early (contextlib.aclosing does it for sure), or cancelling its task, aborts the request.
        Raises InvalidRequest here, at the call, when the request can never be served.
        """
        return self._stream(
            self._service.assembler(
                prompt, params, request_id=request_id, priority=priority, tenant=tenant, timeout=timeout, resume=resume
            )
        )

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (),
        tools: Sequence[Message] | None = None,
    ) -> AsyncGenerator[TextEvent, None]:  # fmt: skip
        """Answer a conversation with the model's chat template, with `tools` that it may call; else as `generate`."""
        return self._stream(
            self._service.chat_assembler(
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

    async def _stream(self, assembler: Assembler) -> AsyncGenerator[TextEvent, None]:
        async with aclosing(self.run([assembler])) as batches:
            async for batch in batches:
                for _, event in batch:
                    yield event

    async def run(
        self, assemblers: Sequence[Assembler], *, at_once: bool = True
    ) -> AsyncGenerator[list[tuple[int, TextEvent]], None]:  # fmt: skip
        """Run requests that were made by this service's assembler methods, in any thread; yields their news together.

        Each batch has all that has come since the last one, as (number of the assembler, event), in order; it may be
        empty, where something came of which nothing can be said yet. It ends when each request has had its last event.
        Without `at_once` the first news come at once, and later ones together, which costs less where only the end is
        waited for.
        Closing it early aborts those that are open. Raises what the engine refuses at once.
        """
        mailroom, client = self._mailroom(), self._service.client
        box = _Box(asyncio.get_running_loop())
        riding: dict[str, int] = {}
        at_once = at_once or any(each.request.params.stop for each in assemblers)  # an end that only the text shows
        is_first = True
        try:
            for number, assembler in enumerate(assemblers):
                request_id = assembler.request.request_id
                client.submit(assembler.request, mailroom.sink)
                riding[request_id] = number
                mailroom.open(request_id, box)
                tell_aborts(client, assembler)
            while riding:
                batch: list[tuple[int, TextEvent]] = []
                news = await box.take(at_once=at_once or is_first)
                is_first = False
                for output in news:
                    if (number := riding.get(output.request_id, -1)) < 0:
                        continue
                    assembler = assemblers[number]
                    batch += [(number, event) for event in assembler.take(output)]
                    if output.is_final:
                        self._left(mailroom, riding, output.request_id)
                    elif assembler.is_finished:
                        self._left(mailroom, riding, output.request_id)
                        client.abort(output.request_id)
                    elif assembler.aborts:
                        tell_aborts(client, assembler)
                yield batch
        finally:
            for request_id in list(riding):
                self._left(mailroom, riding, request_id)
                client.abort(request_id)

    def abort_all(self) -> int:
        """Abort everything that is open in this event loop; each ends with finish_reason "abort". Returns how many."""
        open_ids = self._mailroom().open_ids
        for request_id in open_ids:
            self._service.client.abort(request_id)
        return len(open_ids)

    def _left(self, mailroom: _Mailroom, riding: dict[str, int], request_id: str) -> None:
        del riding[request_id]
        mailroom.close(request_id)

    def _mailroom(self) -> _Mailroom:
        loop = asyncio.get_running_loop()
        if loop not in self._mailrooms:
            self._mailrooms[loop] = _Mailroom(loop, self._spacing)
        return self._mailrooms[loop]

    # -- what is going on ------------------------------------------------------------------------------------------

    @property
    def defaults(self) -> ModelDefaults:
        """The model's own defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def report(self) -> dict[str, str]:
        """What was derived at start and how long each phase took."""
        return dict(self._service.client.info.startup_report)

    async def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why; who rides."""
        return await asyncio.to_thread(self._service.client.scheduler_state)

    async def cache_state(self) -> CacheState:
        """The pool of KV blocks in numbers."""
        return await asyncio.to_thread(self._service.client.cache_state)

    async def check_integrity(self) -> list[str]:
        """Prove the ledger; returns what is wrong, nothing when all is well."""
        return await asyncio.to_thread(self._service.client.check_integrity)

    async def warmup(self) -> float:
        """Compute the largest steps, and one of each size, so that no request pays for the first; returns seconds.

        Changes nothing else: no token, no block, no count.
        """
        return await asyncio.to_thread(self._service.client.warmup)

    async def load(self) -> LoadReport:
        """Say how busy the engine is."""
        return await asyncio.to_thread(self._service.client.load)
