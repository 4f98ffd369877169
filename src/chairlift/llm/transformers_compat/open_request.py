"""OpenRequest: turns the engine's outputs of one request into GenerationOutputs."""

import time

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import RequestTimeout
from chairlift.core.request import GenerateRequest
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.option_names_in_errors import (
    ENGINE_LIMITS,
    naming_given_options,
    with_given_names,
)
from chairlift.llm.transformers_compat.request_queue import WaitingRequest
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.settings import ManagerSettings, request_params

_STATUS = {FinishReason.ERROR: RequestStatus.FAILED, FinishReason.ABORT: RequestStatus.CANCELLED}
CANCELLED = "the request was cancelled"


class OpenRequest:
    """A request from its submission to its last output; one thread at a time calls `process`.

    Attributes:
        validated: the request.
        request_id: id of the request.
        streaming: whether each token has an output, or only the end.
        status: status as of the last output.
    """

    def __init__(
        self, validated: ValidatedRequest, prompt_ids: list[int], *, streaming: bool, record_timestamps: bool,
        returns_logprobs: bool, created_time: float,
    ) -> None:  # fmt: skip
        self.validated = validated
        self.request_id = validated.request_id
        self.streaming = streaming
        self.status = RequestStatus.PENDING
        self._prompt_ids = prompt_ids
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._timestamps: list[float] | None = [] if record_timestamps else None
        self._returns_logprobs = returns_logprobs
        self._created_time = created_time
        self._submitted_at = time.perf_counter()
        self._started_at = -1.0

    @property
    def request(self) -> GenerateRequest:
        """The request as the engine receives it."""
        return self.validated.request

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self._tokens)

    def process(self, output: EngineOutput) -> GenerationOutput | None:
        """Add an engine's output; return what is to be delivered, None while a request without streaming runs."""
        now = time.perf_counter()
        self._tokens += output.token_ids
        if self._returns_logprobs:
            self._logprobs += [entry.logprob for entry in output.logprobs]
        if self._timestamps is not None:
            self._timestamps += [now] * len(output.token_ids)
        if output.timeline is not None and self._started_at < 0:
            scheduled = next((event.at for event in output.timeline.events if event.name == "scheduled"), None)
            self._started_at = -1.0 if scheduled is None else self._submitted_at + scheduled
        if output.finish_reason is None:
            self.status = RequestStatus.DECODING
            return self.snapshot() if self.streaming and output.token_ids else None
        return self.ended(output, now)

    def ended(self, output: EngineOutput, now: float) -> GenerationOutput:
        """Return the last output of the request."""
        reason = output.finish_reason or FinishReason.ERROR
        self.status = _STATUS.get(reason, RequestStatus.FINISHED)
        error = CANCELLED if reason is FinishReason.ABORT else None
        if output.error is not None:
            error = with_given_names(output.error.message, ENGINE_LIMITS)
            if isinstance(output.error, RequestTimeout):
                reason = FinishReason.ERROR
        cached = 0 if output.usage is None else output.usage.cached_tokens
        return self._output(error, (self._started_at, now), str(reason), cached)

    def snapshot(self) -> GenerationOutput:
        """Return the output so far."""
        return self._output(None, (self._started_at, -1.0), None, 0)

    def _output(
        self, error: str | None, lifespan: tuple[float, float], reason: str | None, cached: int
    ) -> GenerationOutput:
        return GenerationOutput(
            self.request_id, self._prompt_ids, self._tokens, self._logprobs, error, self.status, self._created_time,
            lifespan, self._timestamps, finish_reason=reason, num_cached_tokens=cached, num_tokens=len(self._tokens),
        )  # fmt: skip


def open_request(
    waiting: WaitingRequest, settings: ManagerSettings, limits: RequestLimits, model_eos: tuple[int, ...],
    cache_salt: str,
) -> OpenRequest:  # fmt: skip
    """Make the engine's request of a waiting one. Raises InvalidRequest (or a subclass) if it can never be served.

    Args:
        waiting: the request.
        settings: the manager's options, for what the request leaves open.
        limits: limits of the engine.
        model_eos: token ids that end an output where nothing else names any.
        cache_salt: only requests with the same value share cached prefixes.
    """
    params, eos = request_params(
        settings, num_prompt_tokens=len(waiting.input_ids), max_new_tokens=waiting.max_new_tokens,
        eos_token_id=waiting.eos_token_id, **waiting.sampling,
    )  # fmt: skip
    prompt = tuple(waiting.input_ids)
    with naming_given_options(ENGINE_LIMITS):
        resolved = params.with_defaults({}, max_tokens=max(1, limits.max_output_tokens(len(prompt))), seed=waiting.seed)
        request = GenerateRequest(
            request_id=waiting.request_id, prompt_token_ids=prompt, params=resolved,
            eos_token_ids=() if resolved.ignore_eos else model_eos if eos is None else eos,
            priority=waiting.priority, timeout=waiting.timeout, cache_salt=cache_salt,
        )  # fmt: skip
        validated = validate_request(request, limits)
    return OpenRequest(
        validated, waiting.input_ids, streaming=waiting.streaming, record_timestamps=waiting.record_timestamps,
        returns_logprobs=settings.return_logprobs, created_time=waiting.created_time,
    )  # fmt: skip
