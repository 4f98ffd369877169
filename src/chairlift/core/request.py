"""GenerateRequest and EngineOutput: the engine's input and output, token ids only, no text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from chairlift.core.bounds import MAX_PRIORITY, MAX_TIMEOUT_SECONDS
from chairlift.core.errors import ChairliftError
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.validation import integer, invalid_param, number

POOLING_TYPES = ("last", "mean")
"""How an embedding is made of the hidden states of a prompt: that of its last token, or the mean of all."""


class FinishReason(StrEnum):
    """Why a request ended; exactly one for each request."""

    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context is reached
    ABORT = "abort"  # the client cancelled it
    ERROR = "error"  # the output carries the error


class RequestPhase(StrEnum):
    """How far a request has come, as users see it; derived from its counters, never stored."""

    PENDING = "pending"
    PREFILLING = "prefilling"
    PREFILLING_SPLIT = "prefilling_split"
    SPLIT_PENDING_REMAINDER = "split_pending_remainder"
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request as the engine receives it: token ids and resolved parameters.

    Attributes:
        request_id: unique among the open requests of its client.
        prompt_token_ids: at least one id, each below the vocabulary size.
        params: resolved (no None among temperature, top_k, top_p, min_p, repetition_penalty, max_tokens, seed).
        eos_token_ids: the model's own end-of-sequence ids; empty under ignore_eos.
        priority: an integer; a smaller one runs first, where the waiting queue's policy uses priorities.
        tenant: part of the prefix cache's salt, so that tenants share no blocks; unit of fairness.
        timeout: seconds from submission, None for no limit.
        adapter: name of the adapter, part of the salt.
        cache_salt: another part of the salt: only requests with the same value share cached prefixes.
        resume: for each choice the output tokens that were delivered already, for example by an engine that failed;
            choices without an entry have none. Generation continues after them, and only new tokens are output.
        pooling: one of POOLING_TYPES: the output is the pooled hidden states of the prompt, and no token; "" generates.

    Raises:
        InvalidRequest: an empty prompt or id, a timeout that is not in [0, MAX_TIMEOUT_SECONDS], a priority that is not
            in [-MAX_PRIORITY, MAX_PRIORITY], more tokens to resume from than the parameters allow, or an unknown
            pooling.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    adapter: str = ""
    cache_salt: str = ""
    resume: tuple[tuple[int, ...], ...] = ()
    pooling: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise invalid_param("prompt", "has 0 tokens, at least 1 is needed")
        if not self.request_id:
            raise invalid_param("request_id", "must not be empty")
        integer("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout is not None:
            number("timeout", self.timeout, 0, MAX_TIMEOUT_SECONDS)
        self._check_resume()
        if self.pooling and self.pooling not in POOLING_TYPES:
            raise invalid_param("pooling", f"must be {' or '.join(POOLING_TYPES)}, got {self.pooling!r}")

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Token ids that end an output."""
        return frozenset(self.eos_token_ids).union(self.params.stop_token_ids)

    def resumed_tokens(self, index: int) -> tuple[int, ...]:
        """Return the output tokens of a choice that were delivered before this request."""
        return self.resume[index] if index < len(self.resume) else ()

    def _check_resume(self) -> None:
        if not self.resume:
            return
        params, stops = self.params, self.all_stop_token_ids
        if params.num_choices > params.n and any(self.resume):
            raise invalid_param(
                "resume", "cannot be combined with best_of, because the resumed tokens have no logprobs"
            )
        if len(self.resume) > params.num_choices:
            raise invalid_param(
                "resume", f"has tokens of {len(self.resume)} choices, the request has {params.num_choices}"
            )
        for tokens in self.resume:
            if params.max_tokens is not None and len(tokens) > params.max_tokens:
                raise invalid_param(
                    "resume", f"has {len(tokens)} tokens for a choice, the limit is max_tokens = {params.max_tokens}"
                )
            if not stops.isdisjoint(tokens[:-1]):
                raise invalid_param("resume", "has tokens after a token that ends the output")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Logprobs (natural logarithm, of the raw logits) of a sampled token and of the likeliest ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens from the prefix cache when the request was first scheduled


class TimelineEvent(NamedTuple):
    """One event of a request."""

    name: str  # queued, scheduled, preempted, first_token, finished, ...
    at: float  # seconds since the request was queued
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of a request and its wait times.

    Attributes:
        events: in order of time; the first is `queued` at 0.
        wait_seconds: seconds in the waiting queue by reason: budget, blocks, running_limit, policy, prefix.
    """

    events: tuple[TimelineEvent, ...]
    wait_seconds: tuple[tuple[str, float], ...] = ()


class EngineOutput(NamedTuple):
    """New output of one choice of a request. Only the last output of a choice has a finish_reason.

    Only the final output of a request has a usage. Choices that are still open then end with its finish_reason: an
    error, an abort or a timeout ends every open choice.

    Attributes:
        request_id: id of the request.
        token_ids: new tokens since the last output, in order.
        logprobs: one entry for each new token when requested, else empty.
        finish_reason: None until the choice ends.
        error: the error when finish_reason is "error".
        usage: on the final output of the request; of all choices together.
        timeline: on the first output of each choice with a token, and on the last one.
        choice_index: index of the choice.
        prompt_logprobs: one entry for each further prompt token except the first, when requested.
        embedding: of a request with `pooling` that has finished: float32 numbers in the byte order of the machine.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: ChairliftError | None = None
    usage: Usage | None = None
    timeline: Timeline | None = None
    choice_index: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    embedding: bytes = b""

    @property
    def is_final(self) -> bool:
        """Whether this is the last output of the request."""
        return self.usage is not None

    @classmethod
    def merged(cls, outputs: "Sequence[EngineOutput]") -> "EngineOutput":
        """Merge consecutive outputs of one choice into one."""
        first, last = outputs[0], outputs[-1]
        if first is last:
            return first
        timelines = (output.timeline for output in reversed(outputs) if output.timeline is not None)
        return cls(
            first.request_id, tuple(chain.from_iterable(output.token_ids for output in outputs)),
            tuple(chain.from_iterable(output.logprobs for output in outputs)), last.finish_reason, last.error,
            last.usage, next(timelines, None), first.choice_index,
            tuple(chain.from_iterable(output.prompt_logprobs for output in outputs)), last.embedding,
        )  # fmt: skip

    @classmethod
    def failed(cls, request: GenerateRequest, error: ChairliftError) -> "EngineOutput":
        """Make the final output of a request that no engine accepted, or that a failed engine ran."""
        return cls.ended(request, FinishReason.ERROR, error)

    @classmethod
    def ended(
        cls, request: GenerateRequest, reason: FinishReason, error: ChairliftError | None = None
    ) -> "EngineOutput":  # fmt: skip
        """Make the final output of a request without knowledge of its progress."""
        usage = Usage(len(request.prompt_token_ids), sum(map(len, request.resume)), 0)
        return cls(request.request_id, finish_reason=reason, error=error, usage=usage)
