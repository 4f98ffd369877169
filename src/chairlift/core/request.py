"""GenerateRequest: what the engine is asked for: token ids only, no text."""

from dataclasses import dataclass
from enum import StrEnum

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion
from chairlift.core.numeric_limits import MAX_PRIORITY, MAX_TIMEOUT_SECONDS
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.validation import integer, invalid_param, number

POOLING_TYPES = ("last", "mean")
"""How an embedding is made of the hidden states of a prompt: that of its last token, or the mean of all."""

MAX_PREFIX_BOUNDARIES = 8
"""Boundaries of a prompt that an engine uses, the last ones; each may cost a checkpoint of the model's state."""


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
        adapter: the version of the LoRA adapter; its digest is part of the salt.
        cache_salt: another part of the salt: only requests with the same value share cached prefixes.
        resume: for each choice the output tokens that were delivered already, for example by an engine that failed;
            choices without an entry have none. Generation continues after them, and only new tokens are output.
        pooling: one of POOLING_TYPES: the output is the pooled hidden states of the prompt, and no token; "" generates.
        prefix_boundaries: positions in the prompt at which a later request may differ from this one, in any order: the
            ends of a conversation's turns, for example. A model with layers that keep a state saves it before the last
            MAX_PREFIX_BOUNDARIES of them; other models need none.
        predicted_token_ids: tokens that most of the output is expected to be, which make it faster where they are
            right and change nothing else.

    Raises:
        InvalidRequest: an empty prompt or id, a timeout that is not in [0, MAX_TIMEOUT_SECONDS], a priority that is not
            in [-MAX_PRIORITY, MAX_PRIORITY], more tokens to resume from than the parameters allow, an unknown pooling,
            or a prefix boundary that is not in [0, number of prompt tokens].
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    adapter: AdapterVersion = NO_ADAPTER
    cache_salt: str = ""
    resume: tuple[tuple[int, ...], ...] = ()
    pooling: str = ""
    prefix_boundaries: tuple[int, ...] = ()
    predicted_token_ids: tuple[int, ...] = ()

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
        for position in self.prefix_boundaries:
            integer("prefix_boundaries", position, 0, len(self.prompt_token_ids))

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Token ids that end an output."""
        return frozenset(self.eos_token_ids).union(self.params.stop_token_ids)

    @property
    def last_prefix_boundaries(self) -> tuple[int, ...]:
        """The last MAX_PREFIX_BOUNDARIES different boundaries, in order."""
        return tuple(sorted(set(self.prefix_boundaries))[-MAX_PREFIX_BOUNDARIES:])

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
