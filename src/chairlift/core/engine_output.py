"""EngineOutput: what the engine returns for a request: token ids only, no text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from chairlift.core.errors import ChairliftError
from chairlift.core.request import GenerateRequest
from chairlift.core.request_timeline import Timeline


class FinishReason(StrEnum):
    """Why a request ended; exactly one for each request."""

    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context is reached
    ABORT = "abort"  # the client cancelled it
    ERROR = "error"  # the output carries the error


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Logprobs (natural logarithm, of the raw logits) of a sampled token and of the likeliest ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: output tokens of all choices, those included that were delivered before it was resumed.
        cached_tokens: prompt tokens from the prefix cache when the request was first scheduled.
        accepted_prediction_tokens: drafts from the request's prediction that became output, of all choices.
        rejected_prediction_tokens: drafts from it that did not.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


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
