"""RequestOutput and TextEvent: the results of the text service, whole for scripts and streamed for servers."""

from dataclasses import dataclass, field

from chairlift.core.errors import ChairliftError
from chairlift.core.request import FinishReason, Timeline, TokenLogprob, Usage


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request.

    Attributes:
        index: index of the choice.
        text: the output as text; "" when the model folder has no tokenizer.
        token_ids: every generated token, the stop token included.
        logprobs: one entry for each token when requested, else None; none for resumed tokens.
        finish_reason: "stop", "length", "abort" or "error".
        stop_reason: the stop string that ended the choice, or the id of the stop token; None otherwise.
        seed: the sampling seed; the same request with this seed gives the same tokens.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int = 0


@dataclass(slots=True)
class RequestOutput:
    """The result of a finished request.

    Attributes:
        request_id: id of the request.
        prompt: the prompt's text; None when the prompt came as ids.
        prompt_token_ids: the prompt's token ids.
        outputs: the choices.
        usage: token counts.
        timeline: events with seconds since the request was queued.
        error: the error of a failed request, else None.
        prompt_logprobs: one entry for each prompt token when requested, None for the first; else None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    timeline: Timeline | None = None
    error: ChairliftError | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


@dataclass(frozen=True, slots=True)
class TextEvent:
    """New text of one choice of a streaming request; only its last event has a finish_reason.

    Only the final event of a request has a usage.

    Attributes:
        request_id: id of the request.
        delta: text that is certain now; may be "" while a character or a stop string is incomplete.
        token_ids: new tokens.
        logprobs: one entry for each new token when requested.
        finish_reason: None until the choice ends.
        stop_reason: on the choice's last event, see CompletionOutput.
        error: on the choice's last event, when finish_reason is "error".
        usage: on the request's final event; of all choices together.
        timeline: on the request's final event.
        seed: the sampling seed of the request.
        index: index of the choice; with best_of the best is 0.
        prompt_logprobs: one entry for each further prompt token except the first, when requested.
    """

    request_id: str
    delta: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: ChairliftError | None = None
    usage: Usage | None = None
    timeline: Timeline | None = None
    seed: int = 0
    index: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether this is the last event of the request."""
        return self.usage is not None
