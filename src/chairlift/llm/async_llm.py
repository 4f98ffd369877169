"""AsyncLLM: one request in, its text events out as they come; the text service for servers."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from chairlift.core.load import LoadReport
from chairlift.core.request import Output
from chairlift.core.sampling import SamplingParams
from chairlift.engine.stats import CacheState, SchedulerState
from chairlift.llm.assembler import Assembler
from chairlift.llm.build import build_service
from chairlift.llm.options import Options
from chairlift.llm.output import TextEvent
from chairlift.llm.pump import tell_aborts
from chairlift.llm.service import Message, ModelDefaults, Prompt, Resume, Service


class _Mailroom:
    """Brings a step's outputs into one event loop with one wake-up, and sorts them there.

    `sink` is what the engine calls; everything else belongs to the event loop, which it does not keep alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._boxes: dict[str, asyncio.Queue[Output]] = {}
        self.sink = self._from_engine

    def open(self, request_id: str) -> "asyncio.Queue[Output]":
        box: asyncio.Queue[Output] = asyncio.Queue()
        self._boxes[request_id] = box
        return box

    def close(self, request_id: str) -> None:
        self._boxes.pop(request_id, None)

    def _from_engine(self, outputs: list[Output]) -> None:
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._sort, outputs)

    def _sort(self, outputs: list[Output]) -> None:
        for output in outputs:
            box = self._boxes.get(output.request_id)
            if box is not None:
                box.put_nowait(output)


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
    def over(cls, service: Service) -> Self:
        """Make an AsyncLLM over a service that runs already."""
        made = cls.__new__(cls)
        made._start(service)
        return made

    def _start(self, service: Service) -> None:
        self._service = service
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
        mailroom, client = self._mailroom(), self._service.client
        request_id = assembler.request.request_id
        client.submit(assembler.request, mailroom.sink)
        box = mailroom.open(request_id)
        is_over = False  # for the engine
        try:
            while not (is_over or assembler.is_finished):
                tell_aborts(client, assembler)
                output = await box.get()
                is_over = output.is_last
                for event in assembler.take(output):
                    yield event
        finally:
            mailroom.close(request_id)
            if not is_over:
                client.abort(request_id)

    def _mailroom(self) -> _Mailroom:
        loop = asyncio.get_running_loop()
        if loop not in self._mailrooms:
            self._mailrooms[loop] = _Mailroom(loop)
        return self._mailrooms[loop]

    # -- what is going on ------------------------------------------------------------------------------------------

    @property
    def defaults(self) -> ModelDefaults:
        """The model's own defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def report(self) -> dict[str, str]:
        """What was derived at start and how long each phase took."""
        return dict(self._service.client.info.report)

    async def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why; who rides."""
        return await asyncio.to_thread(self._service.client.scheduler_state)

    async def cache_state(self) -> CacheState:
        """The pool of KV blocks in numbers."""
        return await asyncio.to_thread(self._service.client.cache_state)

    async def validate(self) -> list[str]:
        """Prove the ledger; returns what is wrong, nothing when all is well."""
        return await asyncio.to_thread(self._service.client.validate)

    async def warmup(self) -> float:
        """Compute the largest steps, and one of each size, so that no request pays for the first; returns seconds.

        Changes nothing else: no token, no block, no count.
        """
        return await asyncio.to_thread(self._service.client.warmup)

    async def load(self) -> LoadReport:
        """Say how busy the engine is."""
        return await asyncio.to_thread(self._service.client.load)
