"""LLM: the text service for scripts; completes many prompts and returns all outputs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from chairlift.core.errors import InvalidRequest
from chairlift.core.load_report import LoadReport
from chairlift.core.sampling import SamplingParams
from chairlift.engine.stats import CacheState, SchedulerState
from chairlift.llm.batch_run import run_batch
from chairlift.llm.build import build_service
from chairlift.llm.options import Options
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.progress import Progress
from chairlift.llm.text_service import Message, ModelDefaults, Prompt, Resume, TextService, plain

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model. Use it as a context manager, or call close().

    Thread-safe: requests of several threads are batched inputs.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[Options]) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        Without a model the log names the one that runs. Raises ModelError when the model cannot be loaded, ConfigError
        for an invalid option.
        """
        self._service = build_service(model, options)

    @classmethod
    def from_service(cls, service: TextService) -> Self:
        """Create an LLM over a running service (tests, several front ends over one engine)."""
        llm = cls.__new__(cls)
        llm._service = service
        return llm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine; open requests end with EngineDead. May be called more than once."""
        self._service.client.close()

    # -- generate --------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, priority: int = 0, tenant: str = "",
        timeout: float | None = None, resume: Sequence[Resume] | None = None, use_tqdm: bool = True,
    ) -> list[RequestOutput]:  # fmt: skip
        """Complete each prompt; return the outputs in the order of the prompts.

        Args:
            prompts: a string, a list of token ids, or a list of either.
            params: one SamplingParams for all, or one for each; None for the model's defaults.
            priority: a smaller one runs first, where the policy uses priorities.
            tenant: requests of different tenants share no cache.
            timeout: seconds for each request.
            resume: for each prompt the output tokens of each choice that were delivered before; the outputs hold them
                and the tokens after them.
            use_tqdm: show a progress bar on stderr.

        Raises InvalidRequest before anything is queued when one of the requests can never be served. A request that
        fails later does not raise: its output has finish_reason "error" and `.error`.
        """
        many = _prompts(prompts)
        inputs = zip(many, _params(params, len(many)), _resumes(resume, len(many)), strict=True)
        processors = [
            self._service.prepare_completion(
                prompt, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered
            )
            for prompt, own, delivered in inputs
        ]
        return self._run(processors, use_tqdm)

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], params: Params = None, *, priority: int = 0,
        tenant: str = "", timeout: float | None = None, resume: Sequence[Resume] | None = None, use_tqdm: bool = True,
        tools: Sequence[Message] | None = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Complete one conversation or several by the model's chat template; like `generate`.

        `tools` are the tools that the model may call in every conversation, as in the chat completions API; a call is
        text as the model writes it.
        """
        many = _conversations(messages)
        inputs = zip(many, _params(params, len(many)), _resumes(resume, len(many)), strict=True)
        processors = [
            self._service.prepare_chat(
                conversation, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered, tools=tools
            )
            for conversation, own, delivered in inputs
        ]
        return self._run(processors, use_tqdm)

    def _run(self, processors: list[OutputProcessor], use_tqdm: bool) -> list[RequestOutput]:
        """Submit requests as fast as the engine's waiting queue accepts them, until each has ended."""
        events = run_batch(self._service.client, processors, self._service.max_queue_size)
        with Progress(len(processors), shown=use_tqdm) as progress, closing(events):
            for _, event in events:
                progress.tokens(len(event.token_ids))
                if event.is_final:
                    progress.request_done()
        return [processor.result() for processor in processors]

    # -- introspection ---------------------------------------------------------------------------------------------

    @property
    def defaults(self) -> ModelDefaults:
        """The model's defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def startup_report(self) -> dict[str, str]:
        """Derived settings and the duration of each startup phase."""
        return dict(self._service.client.info.startup_report)

    def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order and with the reason, and the running ones."""
        return self._service.client.scheduler_state()

    def cache_state(self) -> CacheState:
        """Return the counts of the KV block pool."""
        return self._service.client.cache_state()

    def check_integrity(self) -> list[str]:
        """Check the engine's invariants; return the violations, an empty list when there are none."""
        return self._service.client.check_integrity()

    def flush_cache(self) -> int:
        """Drop every cached block that no request holds; return the number of blocks."""
        return self._service.client.flush_cache()

    def warmup(self) -> float:
        """Run the largest steps, and one of each size, before the first request; return the seconds taken.

        Changes no token, block or counter.
        """
        return self._service.client.warmup()

    def load(self) -> LoadReport:
        """Return the engine's load."""
        return self._service.client.load()


def _prompts(prompts: Any) -> list[Prompt]:
    """Return one or several prompts as a list: a string or a flat list of ids is one prompt."""
    prompts = plain(prompts)
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping | set | frozenset):
        raise InvalidRequest(f"prompts must be strings or lists of ids, got {type(prompts).__name__}", param="prompt")
    many = [plain(prompt) for prompt in prompts]
    if many and not any(isinstance(prompt, Iterable) for prompt in many):
        return [many]
    for prompt in many:
        if not isinstance(prompt, Iterable):
            raise InvalidRequest(f"a prompt must be a string or a list of ids, got {prompt!r}", param="prompt")
    return many


def _conversations(messages: Any) -> list[Sequence[Message]]:
    """Return one or several conversations as a list: a flat list of messages is one conversation."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest(f"messages must be a list of objects, got {type(messages).__name__}", param="messages")
    many = list(messages)
    return many if many and isinstance(many[0], list | tuple) else [many]


def _resumes(resume: Sequence[Resume] | None, count: int) -> Sequence[Resume]:
    if resume is None:
        return [()] * count
    resume = plain(resume)
    if not isinstance(resume, list | tuple):
        raise InvalidRequest(
            f"resume must be a list with one entry per prompt, got {type(resume).__name__}", param="resume"
        )
    if len(resume) != count:
        raise InvalidRequest(
            f"resume must have one entry per prompt: {count} prompts, {len(resume)} entries", param="resume"
        )
    return resume


def _params(params: Params, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple):
        raise InvalidRequest(
            f"params must be SamplingParams or a list of them, got {type(params).__name__}", param="params"
        )
    if len(params) != count:
        raise InvalidRequest(
            f"params must have one entry per prompt: {count} prompts, {len(params)} SamplingParams", param="params"
        )
    return list(params)
