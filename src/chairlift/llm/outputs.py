"""What a caller of the text service gets: RequestOutput for scripts, TextEvent for streams."""

from dataclasses import dataclass, field

from chairlift.core.errors import ChairliftError
from chairlift.core.request import FinishReason, Timeline, TokenLogprob, Usage


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request.

    Attributes:
        index: number of the choice.
        text: the output as text; "" when the model folder has no tokenizer.
        token_ids: every token that was generated, the one that ended it included.
        logprobs: one entry a token when they were asked for, else None; none of tokens it was resumed from.
        finish_reason: "stop", "length", "abort" or "error".
        stop_reason: the stop string that ended it, or the id of the stop token; None otherwise.
        seed: of its draws; the same request with this seed gives the same tokens.
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
    """A request that has ended.

    Attributes:
        request_id: its id.
        prompt: the prompt's text; None when it was given as ids.
        prompt_token_ids: the prompt as the model read it.
        outputs: its choices.
        usage: token counts.
        timeline: what happened when, in seconds since it was queued.
        error: why it failed; None when it did not.
        prompt_logprobs: one entry a token of the prompt when they were asked for, None for the first; else None.
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
    """News of one choice of a request as it streams. Each choice's last one, and only it, has a finish_reason.

    The request's last one, and only it, has its usage.

    Attributes:
        request_id: whose news.
        delta: text that is certain now; may be "" while a character or a stop string is incomplete.
        token_ids: new tokens.
        logprobs: one entry a new token when they were asked for.
        finish_reason: None until the end.
        stop_reason: on the last one, see CompletionOutput.
        error: on the last one, when finish_reason is "error".
        usage: on the request's last one; of all choices together.
        timeline: on the request's last one.
        seed: of the request's draws.
        index: which choice; with best_of the best is 0.
        prompt_logprobs: one entry for each further token of the prompt but its first, when they were asked for.
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
    def is_last(self) -> bool:
        """Whether nothing more comes of the request."""
        return self.usage is not None
