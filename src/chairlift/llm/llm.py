"""LLM: the text service for scripts; completes many prompts and returns all outputs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.item_errors import item_in_errors
from chairlift.core.load_report import LoadReport
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.validation import boolean
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.llm.adapter_store import AdapterLease
from chairlift.llm.batch_run import run_batch
from chairlift.llm.build import build_service
from chairlift.llm.embedding_and_score_outputs import (
    EmbeddingOptions,
    EmbeddingOutput,
    ScoreOutput,
    check_pairs,
    score_pairs,
)
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.prepare_embeddings import prepare_embeddings
from chairlift.llm.progress_bar import ProgressBar
from chairlift.llm.text_service import (
    PROMPT_FIELDS,
    Message,
    Prediction,
    Prompt,
    Resume,
    TextService,
    plain,
    prompts_of,
)
from chairlift.llm.vllm_compat.model_tokenizer import ModelTokenizer
from chairlift.llm.vllm_compat.vllm_options import resolve_options
from chairlift.lora.request import LoRARequest

Params = SamplingParams | Sequence[SamplingParams] | None
LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
Predictions = str | Sequence[Prediction | None] | None

SAMPLING_FIELDS = ("sampling_params", *(field.name for field in fields(SamplingParams)))
"""What the error of a prompt's SamplingParams may name."""


class LLM:
    """A loaded model. Use it as a context manager, or call close().

    Thread-safe: requests of several threads are batched inputs.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        """Load a Hugging Face model folder or hub id (None: the embedded demo model) and start its engine.

        `options` are those of Options; vLLM's names are accepted too, see docs/from-vllm.md. Without a model the log
        names the one that runs. Raises ModelError when the model cannot be loaded, ConfigError for an invalid option,
        UnknownOption (a TypeError) for an unknown one.
        """
        self._service = build_service(model, resolve_options(model, options))

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
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, priority: int = 0,
        tenant: str = "", timeout: float | None = None, resume: Sequence[Resume] | None = None, use_tqdm: bool = True,
        prediction: Predictions = None, lora_request: LoRARequests = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Complete each prompt; return the outputs in the order of the prompts.

        Args:
            prompts: a string, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these.
            sampling_params: one SamplingParams for all, or one for each; None for get_default_sampling_params().
            priority: a smaller one runs first, where the policy uses priorities.
            tenant: requests of different tenants share no cache.
            timeout: seconds for each request.
            resume: for each prompt the output tokens of each choice that were delivered before; the outputs hold them
                and the tokens after them.
            use_tqdm: show a progress bar on stderr.
            prediction: text that most of each output is expected to be, such as a file before an edit; a list has one
                text, list of token ids or None for each prompt. Changes the speed only.
            lora_request: the LoRA adapter of all prompts, or a list with one or None for each.

        Raises InvalidRequest before anything is queued when one of the requests can never be served; the message says
        which of several, as in "prompts[3]: ...". A request that fails later does not raise: its output has
        finish_reason "error" and `.error`.
        """
        many = prompts_of(prompts)
        inputs = zip(
            many, _params(sampling_params, len(many)), _resumes(resume, len(many)), _predictions(prediction, len(many)),
            strict=True,
        )  # fmt: skip
        own_fields, processors = _own_fields(sampling_params), []
        with self._adapters(lora_request, len(many)) as adapters:
            for index, (prompt, own, delivered, predicted) in enumerate(inputs):
                with item_in_errors("prompts", index, len(many), own_fields):
                    processors.append(self._service.prepare_completion(
                        prompt, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered,
                        prediction=predicted, adapter=adapters[index],
                    ))  # fmt: skip
            return self._run(processors, use_tqdm)

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: Params = None, *,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Sequence[Resume] | None = None,
        use_tqdm: bool = True, tools: Sequence[Message] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, add_generation_prompt: bool | None = None,
        continue_final_message: bool = False, prediction: Predictions = None, lora_request: LoRARequests = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Complete one conversation or several by the model's chat template; like `generate`.

        An error of one of several conversations begins with its place, as in "conversations[3]: ...".

        Args besides those of `generate`:
            tools: tools that the model may call in every conversation, as in the chat completions API; a call is text
                as the model writes it.
            chat_template_kwargs: variables of the chat template, as in {"enable_thinking": False}.
            add_generation_prompt: end the prompt with the beginning of the assistant's message; None for True unless
                continue_final_message is set.
            continue_final_message: the output continues the last message, which must be the assistant's.
        """
        many = _conversations(messages)
        inputs = zip(
            many, _params(sampling_params, len(many)), _resumes(resume, len(many)), _predictions(prediction, len(many)),
            strict=True,
        )  # fmt: skip
        rendering = self._service.rendering(
            chat_template_kwargs, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )  # fmt: skip
        own_fields, processors = _own_fields(sampling_params), []
        with self._adapters(lora_request, len(many)) as adapters:
            for index, (conversation, own, delivered, predicted) in enumerate(inputs):
                with item_in_errors("conversations", index, len(many), own_fields):
                    processors.append(self._service.prepare_chat(
                        conversation, own, priority=priority, tenant=tenant, timeout=timeout, resume=delivered,
                        tools=tools, rendering=rendering, prediction=predicted, adapter=adapters[index],
                    ))  # fmt: skip
            return self._run(processors, use_tqdm)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: str | None = None, dimensions: int | None = None,
        normalize: bool = True, priority: int = 0, tenant: str = "", timeout: float | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:  # fmt: skip
        """Return the embedding of each prompt, in the order of the prompts; see `generate`.

        Args besides those of `generate`:
            pooling: "last" is the hidden state of the prompt's last token, "mean" the mean over all of its tokens; None
                for what the model folder names, or "last".
            dimensions: how many numbers an embedding has, the first ones of the model's; None for all.
            normalize: scale each embedding to a Euclidean length of 1.

        Raises InvalidRequest before anything is queued; a request that fails later has `.error` and no embedding.
        """
        options = EmbeddingOptions(dimensions=dimensions, normalize=boolean("normalize", normalize))
        options.check(self._service.client.limits.hidden_size)
        processors = prepare_embeddings(
            self._service, {"prompts": prompts_of(prompts)}, pooling, priority=priority, tenant=tenant, timeout=timeout
        )
        return [options.output(result) for result in self._run(processors, use_tqdm)]

    def score(
        self, text: Prompt | Sequence[Prompt], other: Prompt | Sequence[Prompt], *, pooling: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, use_tqdm: bool = True,
    ) -> list[ScoreOutput]:  # fmt: skip
        """Return how similar each of the other texts is, by the cosine of the embeddings; see `embed`.

        Args besides those of `embed`:
            text: one prompt, with which all others are compared, or as many as there are others.
            other: the other prompts.

        Raises InvalidRequest, also when the numbers of prompts do not fit.
        """
        firsts, others = prompts_of(text), prompts_of(other)
        check_pairs(len(firsts), len(others))
        processors = prepare_embeddings(
            self._service, {"text": firsts, "other": others}, pooling, priority=priority, tenant=tenant, timeout=timeout
        )
        results = self._run(processors, use_tqdm)
        return score_pairs(results[: len(firsts)], results[len(firsts) :])

    @contextmanager
    def _adapters(self, lora_request: LoRARequests, count: int) -> Iterator[Sequence[AdapterVersion]]:
        """Load and hold the adapter of each prompt until the prompts of a call have ended."""
        requests = _lora_requests(lora_request, count)
        leases: dict[LoRARequest, AdapterLease] = {}
        try:
            for request in requests:
                if request is not None and request not in leases:
                    leases[request] = self._lease(request)
            yield [NO_ADAPTER if request is None else leases[request].version for request in requests]
        finally:
            for lease in leases.values():
                lease.release()

    def _lease(self, request: LoRARequest) -> AdapterLease:
        if (store := self._service.adapters) is None:
            raise ConfigError("this engine has no LoRA adapters; make one with enable_lora=True", option="enable_lora")
        return store.lease_folder(request.lora_name, request.lora_path, in_place=request.load_inplace).result()

    def _run(self, processors: list[OutputProcessor], use_tqdm: bool) -> list[RequestOutput]:
        """Submit requests as fast as the engine's waiting queue accepts them, until each has ended."""
        events = run_batch(self._service.client, processors, self._service.max_queue_size)
        with ProgressBar(len(processors), shown=use_tqdm) as progress, closing(events):
            for _, event in events:
                progress.tokens(len(event.token_ids))
                if event.is_final:
                    progress.request_done()
        return [processor.result() for processor in processors]

    def get_tokenizer(self) -> ModelTokenizer:
        """Return the model's tokenizer and chat template. Raises ModelError when the model folder has none."""
        return ModelTokenizer(self._service.tokenizer, self._service.chat_template, self._service.model)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a request without any: those of generation_config.json, and max_tokens 16."""
        return self._service.default_params()

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


def _own_fields(params: Params) -> tuple[str, ...]:
    """Return the fields in which the prompts of a call may differ."""
    own = (*PROMPT_FIELDS, "messages", "resume", "prediction")
    return own if params is None or isinstance(params, SamplingParams) else (*own, *SAMPLING_FIELDS)


def _conversations(messages: Any) -> list[Sequence[Message]]:
    """Return one or several conversations as a list: a flat list of messages is one conversation."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest(f"messages must be a list of objects, got {type(messages).__name__}", param="messages")
    many = list(messages)
    return many if many and isinstance(many[0], list | tuple) else [many]


def _predictions(prediction: Predictions, count: int) -> Sequence[Prediction | None]:
    if prediction is None or isinstance(prediction, str):
        return [prediction] * count
    return _one_per_prompt("prediction", prediction, count, "a string, or a list with one entry per prompt")


def _lora_requests(lora_request: LoRARequests, count: int) -> Sequence[LoRARequest | None]:
    if lora_request is None or isinstance(lora_request, LoRARequest):
        return [lora_request] * count
    requests = _one_per_prompt("lora_request", lora_request, count, "a LoRARequest, or a list with one per prompt")
    for request in requests:
        if request is not None and not isinstance(request, LoRARequest):
            raise InvalidRequest(
                f"lora_request must have LoRARequests, got {type(request).__name__}", param="lora_request"
            )
    return requests


def _resumes(resume: Sequence[Resume] | None, count: int) -> Sequence[Resume]:
    if resume is None:
        return [()] * count
    return _one_per_prompt("resume", plain(resume), count, "a list with one entry per prompt")


def _params(params: Params, count: int) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    return _one_per_prompt("sampling_params", params, count, "SamplingParams or a list of them", "SamplingParams")


def _one_per_prompt(name: str, values: Any, count: int, expected: str, entries: str = "entries") -> Sequence[Any]:
    """Return a list or tuple with one entry for each prompt. Raises InvalidRequest for anything else."""
    if not isinstance(values, list | tuple):
        raise InvalidRequest(f"{name} must be {expected}, got {type(values).__name__}", param=name)
    if len(values) != count:
        raise InvalidRequest(
            f"{name} must have one entry per prompt: {count} prompts, {len(values)} {entries}", param=name
        )
    return values
