"""What goes into an engine and what comes out: ids only, no text."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from chairlift.core.errors import ChairliftError
from chairlift.core.sampling import SamplingParams, number, refuse, whole

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

    Raises:
        InvalidRequest: an empty prompt or id, a timeout that is not in [0, MAX_TIMEOUT], an impossible priority.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    adapter: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise refuse("prompt", "has 0 tokens, at least 1 is needed")
        if not self.request_id:
            raise refuse("request_id", "must not be empty")
        whole("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout is not None:
            number("timeout", self.timeout, 0, MAX_TIMEOUT)


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
    waited: tuple[tuple[str, float], ...] = ()


class Output(NamedTuple):
    """News of one request after one step. The last one of a request, and only it, has a finish_reason.

    Attributes:
        request_id: whose news.
        token_ids: new tokens since the last Output, in order.
        logprobs: one entry a new token when they were asked for, else empty.
        finish_reason: None until the end.
        error: why, when finish_reason is "error".
        usage: on the last one.
        timeline: on the last one.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: ChairliftError | None = None
    usage: Usage | None = None
    timeline: Timeline | None = None
