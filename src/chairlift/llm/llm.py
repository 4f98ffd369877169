"""LLM: many prompts in, all their outputs back; the text service for scripts."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from chairlift.core.errors import InvalidRequest
from chairlift.core.load_report import LoadReport
from chairlift.core.sampling import SamplingParams
from chairlift.engine.stats import CacheState, SchedulerState
from chairlift.llm.batch_run import pump
from chairlift.llm.build import build_service
from chairlift.llm.options import Options
from chairlift.llm.output_processor import Assembler
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.progress import Progress
from chairlift.llm.text_service import Message, ModelDefaults, Prompt, Resume, Service, plain

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model that is loaded and ready. Use it as a context manager, or call close().

    Safe to use from several threads at once: their requests ride together.
    """

    def __init__(self, model: str | Path | None = None, **options: Unpack[Options]) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        Without a model the log says which one runs. Raises ModelError when it cannot be loaded, ConfigError for an
        impossible option.
        """
        self._service = build_service(model, options)

    @classmethod
    def over(cls, service: Service) -> Self:
        """Make an LLM over a service that runs already (tests, several doors over one engine)."""
        made = cls.__new__(cls)
        made._service = service
        return made

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
        """Complete each prompt; outputs come in the order of the prompts.

        Args:
            prompts: a string, a list of token ids, or a list of either.
            params: one SamplingParams for all, or one for each; None for the model's defaults.
            priority: smaller rides first, where the policy looks at it.
            tenant: requests of different tenants share no cache.
            timeout: seconds for each request.
            resume: for each prompt the output tokens of each choice that were delivered before; the outputs hold them
                and what follows them.
            use_tqdm: show a progress bar on stderr.

        Raises InvalidRequest before anything is queued when one of them can never be served. A request that fails
        later does not raise: its output has finish_reason "error" and `.error`.
        """
        many = _prompts(prompts)
        together = zip(many, _params(params, len(many)), _resumes(resume, len(many)), strict=True)
        assemblers = [
            self._service.assembler(prompt, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered)
            for prompt, own, delivered in together
        ]
        return self._run(assemblers, use_tqdm)

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], params: Params = None, *, priority: int = 0,
        tenant: str = "", timeout: float | None = None, resume: Sequence[Resume] | None = None, use_tqdm: bool = True,
        tools: Sequence[Message] | None = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Answer a conversation, or each of several, with the model's chat template; else as `generate`.

        `tools` are what the model may call, in every conversation, as the chat completions API has them; a call is text
        as the model writes it.
        """
        many = _conversations(messages)
        together = zip(many, _params(params, len(many)), _resumes(resume, len(many)), strict=True)
        assemblers = [
            self._service.chat_assembler(
                conversation, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered, tools=tools
            )
            for conversation, own, delivered in together
        ]
        return self._run(assemblers, use_tqdm)

    def _run(self, assemblers: list[Assembler], use_tqdm: bool) -> list[RequestOutput]:
        """Feed the engine as fast as its line takes requests, until each has ended."""
        events = pump(self._service.client, assemblers, self._service.max_queue_size)
        with Progress(len(assemblers), shown=use_tqdm) as progress, closing(events):
            for _, event in events:
                progress.tokens(len(event.token_ids))
                if event.is_last:
                    progress.request_done()
        return [assembler.result() for assembler in assemblers]

    # -- what is going on ------------------------------------------------------------------------------------------

    @property
    def defaults(self) -> ModelDefaults:
        """The model's own defaults, from generation_config.json."""
        return self._service.defaults

    @property
    def report(self) -> dict[str, str]:
        """What was derived at start and how long each phase took."""
        return dict(self._service.client.info.startup_report)

    def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why; who rides."""
        return self._service.client.scheduler_state()

    def cache_state(self) -> CacheState:
        """The pool of KV blocks in numbers."""
        return self._service.client.cache_state()

    def check_integrity(self) -> list[str]:
        """Prove the ledger; returns what is wrong, nothing when all is well."""
        return self._service.client.check_integrity()

    def flush_cache(self) -> int:
        """Forget every cached block that nobody holds; returns how many."""
        return self._service.client.flush_cache()

    def warmup(self) -> float:
        """Compute the largest steps, and one of each size, so that no request pays for the first; returns seconds.

        Changes nothing else: no token, no block, no count.
        """
        return self._service.client.warmup()

    def load(self) -> LoadReport:
        """Say how busy the engine is."""
        return self._service.client.load()


def _prompts(prompts: Any) -> list[Prompt]:
    """One prompt or several: a string or a flat list of ids is one."""
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
    """One conversation or several: a flat list of messages is one."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest(f"messages must be a list of objects, got {type(messages).__name__}", param="messages")
    many = list(messages)
    return many if many and isinstance(many[0], list | tuple) else [many]


def _resumes(resume: Sequence[Resume] | None, count: int) -> Sequence[Resume]:
    if resume is None:
        return [()] * count
    resume = plain(resume)
    if not isinstance(resume, list | tuple):
        raise InvalidRequest(f"resume must be a list, one entry a prompt, got {type(resume).__name__}", param="resume")
    if len(resume) != count:
        raise InvalidRequest(f"{count} prompts but {len(resume)} entries in resume", param="resume")
    return resume


def _params(params: Params, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple):
        raise InvalidRequest(f"params must be SamplingParams or a list, got {type(params).__name__}", param="params")
    if len(params) != count:
        raise InvalidRequest(f"{count} prompts but {len(params)} SamplingParams", param="params")
    return list(params)
