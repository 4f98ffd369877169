"""What goes into an engine and what comes out: ids only, no text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from chairlift.core.errors import ChairliftError
from chairlift.core.sampling import SamplingParams
from chairlift.core.validation import integer, invalid_param, number

MAX_PRIORITY = 2**31
"""Priorities lie between this and its negative."""

MAX_TIMEOUT = 10 * 365 * 86400.0
"""Seconds; a longer one is a mistake, and infinity is None."""


class FinishReason(StrEnum):
    """Why a request ended; exactly one per request."""

    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context is reached
    ABORT = "abort"  # the caller cancelled it
    ERROR = "error"  # see the error that came with it


class RequestState(StrEnum):
    """What a user sees of a request; derived from its counters, never stored."""

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
    """One request as the engine takes it: token ids and resolved parameters.

    Attributes:
        request_id: unique among the open requests of its client.
        prompt_token_ids: at least one id, each below the vocabulary size.
        params: resolved (no None among temperature, top_k, top_p, min_p, repetition_penalty, max_tokens, seed).
        eos_token_ids: the model's own end-of-sequence ids; empty under ignore_eos.
        priority: smaller rides first, where the line's policy looks at it; a whole number.
        tenant: part of the prefix cache's salt, so that tenants share nothing; unit of fairness.
        timeout: seconds from submission, None for no limit.
        adapter: name of the adapter, part of the salt.
        cache_salt: a further part of it: only requests with the same share cached prefixes.
        resume: for each choice the output tokens that were delivered already, by an engine that is gone, say; what is
            left out has none. The output goes on behind them as if nothing had happened, and only what is new comes.

    Raises:
        InvalidRequest: an empty prompt or id, a timeout that is not in [0, MAX_TIMEOUT], an impossible priority, more
            tokens to resume from than can be.
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

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise invalid_param("prompt", "has 0 tokens, at least 1 is needed")
        if not self.request_id:
            raise invalid_param("request_id", "must not be empty")
        integer("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout is not None:
            number("timeout", self.timeout, 0, MAX_TIMEOUT)
        self._check_resume()

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Tokens that end an output."""
        return frozenset(self.eos_token_ids).union(self.params.stop_token_ids)

    def resumed_tokens(self, index: int) -> tuple[int, ...]:
        """Return the output tokens of a choice that were delivered before."""
        return self.resume[index] if index < len(self.resume) else ()

    def _check_resume(self) -> None:
        if not self.resume:
            return
        params, stops = self.params, self.all_stop_token_ids
        if params.num_choices > params.n:
            raise invalid_param("resume", "cannot go with best_of: what was delivered has no logprobs")
        if len(self.resume) > params.num_choices:
            raise invalid_param(
                "resume", f"has tokens of {len(self.resume)} choices, the request has {params.num_choices}"
            )
        for tokens in self.resume:
            if params.max_tokens is not None and len(tokens) > params.max_tokens:
                raise invalid_param(
                    "resume", f"has {len(tokens)} tokens of a choice, max_tokens is {params.max_tokens}"
                )
            if not stops.isdisjoint(tokens[:-1]):
                raise invalid_param("resume", "has tokens behind one that ends the output")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural logarithm, of the raw logits) of a chosen token, and the likeliest ones beside it."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens that came from the prefix cache when the request first rode


class TimelineEvent(NamedTuple):
    """One moment in a request's life."""

    name: str  # queued, scheduled, preempted, first_token, finished, ...
    at: float  # seconds since the request was queued
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to a request and how long it waited for what.

    Attributes:
        events: in order of time; the first is `queued` at 0.
        waited: seconds spent in line by reason: budget, blocks, running_limit, policy, prefix.
    """

    events: tuple[TimelineEvent, ...]
    wait_seconds: tuple[tuple[str, float], ...] = ()


class EngineOutput(NamedTuple):
    """News of one choice of a request since its last one. Each choice's last one, and only it, has a finish_reason.

    The request's last Output, and only it, has its usage. Where choices are open then, they end with its finish_reason:
    an error, an abort or a timeout ends all that is left of a request.

    Attributes:
        request_id: whose news.
        token_ids: new tokens since the last Output, in order.
        logprobs: one entry a new token when they were asked for, else empty.
        finish_reason: None until the choice's end.
        error: why, when finish_reason is "error".
        usage: on the request's last one; of all choices together.
        timeline: on each choice's last one.
        choice: which one.
        prompt_logprobs: one entry for each further token of the prompt but its first, when they were asked for.
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

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of the request."""
        return self.usage is not None

    @classmethod
    def merged(cls, outputs: "Sequence[EngineOutput]") -> "EngineOutput":
        """Make one of all that was said of a choice in a row."""
        first, last = outputs[0], outputs[-1]
        if first is last:
            return first
        timelines = (output.timeline for output in reversed(outputs) if output.timeline is not None)
        return cls(
            first.request_id, tuple(chain.from_iterable(output.token_ids for output in outputs)),
            tuple(chain.from_iterable(output.logprobs for output in outputs)), last.finish_reason, last.error,
            last.usage, next(timelines, None), first.choice_index,
            tuple(chain.from_iterable(output.prompt_logprobs for output in outputs)),
        )  # fmt: skip

    @classmethod
    def failed(cls, request: GenerateRequest, error: ChairliftError) -> "EngineOutput":
        """Make the only Output of a request that no engine took, or the last one where the engine is gone."""
        return cls.ended(request, FinishReason.ERROR, error)

    @classmethod
    def ended(
        cls, request: GenerateRequest, reason: FinishReason, error: ChairliftError | None = None
    ) -> "EngineOutput":  # fmt: skip
        """Make the last Output of a request of which nothing more is known."""
        usage = Usage(len(request.prompt_token_ids), sum(map(len, request.resume)), 0)
        return cls(request.request_id, finish_reason=reason, error=error, usage=usage)
