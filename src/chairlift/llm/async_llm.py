"""AsyncLLM: the text service for coroutines; streams the text events of each request."""

import asyncio
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from chairlift.core.errors import QueueFull
from chairlift.core.load_report import LoadReport
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.validation import boolean
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.llm.batch_run import FULL_QUEUE_PAUSE
from chairlift.llm.build import build_service
from chairlift.llm.embedding_and_score_outputs import (
    EmbeddingOptions,
    EmbeddingOutput,
    ScoreOutput,
    check_pairs,
    score_pairs,
)
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.output_dispatcher import OutputDispatcher
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.prepare_embeddings import prepare_embeddings
from chairlift.llm.request_stream import RequestStream
from chairlift.llm.submitted_requests import SubmittedRequests
from chairlift.llm.text_event import TextEvent
from chairlift.llm.text_service import Message, Prediction, Prompt, RequestOptions, Resume, TextService, prompts_of
from chairlift.llm.vllm_compat.engine_args import EngineArgs
from chairlift.llm.vllm_compat.model_tokenizer import ModelTokenizer
from chairlift.llm.vllm_compat.vllm_options import resolve_options


class AsyncLLM:
    """A loaded model for coroutines. Use `async with`, or call close().

    The constructor loads the model and blocks; a server calls it in a thread.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        `options` are those of Options; vLLM's names are accepted too, see docs/from-vllm.md. Without a model the log
        names the one that runs. Raises ModelError when the model cannot be loaded, ConfigError for an invalid option,
        UnknownOption (a TypeError) for an unknown one.
        """
        self._start(build_service(model, resolve_options(model, options)))

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
        self._dispatchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, OutputDispatcher] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model that the arguments name and start its engine; see the constructor."""
        return cls(**vars(engine_args))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop the engine; open requests end with EngineDead. May be called more than once."""
        self._service.client.close()

    shutdown = close

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (),
        prediction: Prediction | None = None,
    ) -> RequestStream:  # fmt: skip
        """Complete a prompt (a string, token ids, or {"prompt": ...}); yields outputs until one `finished`.

        `resume` has, for each choice, the output tokens that were delivered before; outputs continue after them.
        `prediction` is what most of the output is expected to be, which changes the speed only.
        Leaving the loop early, or cancelling its task, aborts the request; see RequestStream.
        Raises InvalidRequest at the call when the request can never be served.
        """
        return self._stream(
            self._service.prepare_completion(
                prompt, sampling_params, request_id=request_id, priority=priority, tenant=tenant, timeout=timeout,
                resume=resume, prediction=prediction,
            )
        )  # fmt: skip

    def chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, *,
        request_id: str | None = None, priority: int = 0, tenant: str = "", timeout: float | None = None,
        resume: Resume = (), tools: Sequence[Message] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, add_generation_prompt: bool | None = None,
        continue_final_message: bool = False, prediction: Prediction | None = None,
    ) -> RequestStream:  # fmt: skip
        """Complete a conversation by the model's chat template; like `generate`. The options are those of LLM.chat."""
        rendering = self._service.rendering(
            chat_template_kwargs, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )  # fmt: skip
        return self._stream(
            self._service.prepare_chat(
                messages, sampling_params, request_id=request_id, priority=priority, tenant=tenant, timeout=timeout,
                resume=resume, tools=tools, rendering=rendering, prediction=prediction,
            )
        )  # fmt: skip

    async def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: str | None = None, dimensions: int | None = None,
        normalize: bool = True, priority: int = 0, tenant: str = "", timeout: float | None = None,
    ) -> list[EmbeddingOutput]:  # fmt: skip
        """Return the embedding of each prompt, in the order of the prompts; see LLM.embed."""
        options = EmbeddingOptions(dimensions=dimensions, normalize=boolean("normalize", normalize))
        options.check(self._service.client.limits.hidden_size)
        results = await self._pool(
            {"prompts": prompts_of(prompts)}, pooling, priority=priority, tenant=tenant, timeout=timeout
        )
        return [options.output(result) for result in results]

    async def score(
        self, text: Prompt | Sequence[Prompt], other: Prompt | Sequence[Prompt], *, pooling: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None,
    ) -> list[ScoreOutput]:  # fmt: skip
        """Return how similar each of the other texts is, by the cosine of the embeddings; see LLM.score."""
        firsts, others = prompts_of(text), prompts_of(other)
        check_pairs(len(firsts), len(others))
        results = await self._pool(
            {"text": firsts, "other": others}, pooling, priority=priority, tenant=tenant, timeout=timeout
        )
        return score_pairs(results[: len(firsts)], results[len(firsts) :])

    async def _pool(
        self, lists: Mapping[str, Sequence[Prompt]], pooling: str | None, **options: Unpack[RequestOptions]
    ) -> list[RequestOutput]:
        """Run requests for embeddings; those that the full queue of the engine rejects are submitted again."""
        prepare, window = self._service.prepare_embedding, self._service.max_queue_size
        prompts = [prompt for many in lists.values() for prompt in many]
        processors = prepare_embeddings(self._service, lists, pooling, **options)
        waiting = list(range(len(prompts)))
        by_place: dict[int, RequestOutput] = {}
        while waiting:
            places, waiting = waiting[:window], waiting[window:]
            async with aclosing(self.run([processors[place] for place in places], at_once=False)) as batches:
                async for _ in batches:
                    pass
            by_place |= {place: processors[place].result() for place in places}
            rejected = [place for place in places if isinstance(by_place[place].error, QueueFull)]
            for place in rejected:
                processors[place] = prepare(prompts[place], pooling=pooling, **options)
            if rejected:
                waiting = rejected + waiting
                await asyncio.sleep(FULL_QUEUE_PAUSE)
        return [by_place[place] for place in range(len(prompts))]

    def _stream(self, processor: OutputProcessor) -> RequestStream:
        return RequestStream(processor, lambda processors: self._prepare_requests(processors, at_once=True))

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
        requests = self._prepare_requests(processors, at_once=at_once)
        try:
            requests.submit()
            while requests:
                yield await requests.next_batch()
        finally:
            requests.abort()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort one request or several; their streams end with finish_reason "abort".

        Does nothing for a request that is not open.
        """
        for each in [request_id] if isinstance(request_id, str) else request_id:
            self._service.client.abort(each)

    def abort_all(self) -> int:
        """Abort all open requests of this event loop, with finish_reason "abort". Returns how many."""
        open_ids = self._dispatcher().open_ids
        for request_id in open_ids:
            self._service.client.abort(request_id)
        return len(open_ids)

    def _prepare_requests(self, processors: Sequence[OutputProcessor], *, at_once: bool) -> SubmittedRequests:
        return SubmittedRequests(self._service.client, self._dispatcher(), processors, at_once=at_once)

    def _dispatcher(self) -> OutputDispatcher:
        loop = asyncio.get_running_loop()
        if loop not in self._dispatchers:
            self._dispatchers[loop] = OutputDispatcher(loop, self._stream_interval)
        return self._dispatchers[loop]

    # -- introspection ---------------------------------------------------------------------------------------------

    async def get_tokenizer(self) -> ModelTokenizer:
        """Return the model's tokenizer and chat template. Raises ModelError when the model folder has none."""
        return ModelTokenizer(self._service.tokenizer, self._service.chat_template, self._service.model)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a request without any: those of generation_config.json, and max_tokens 16."""
        return self._service.default_params()

    @property
    def defaults(self) -> ModelDefaults:
        """The model's defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def startup_report(self) -> dict[str, str]:
        """Derived settings and the duration of each startup phase."""
        return dict(self._service.client.info.startup_report)

    @property
    def report(self) -> dict[str, str]:
        """The old name of startup_report; deprecated, and gone after the next version."""
        warnings.warn("AsyncLLM.report is startup_report", DeprecationWarning, stacklevel=2)
        return self.startup_report

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
