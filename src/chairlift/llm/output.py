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
        logprobs: one entry a token when they were asked for, else None.
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
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    timeline: Timeline | None = None
    error: ChairliftError | None = None


@dataclass(frozen=True, slots=True)
class TextEvent:
    """News of one request as it streams. The last one, and only it, has a finish_reason.

    Attributes:
        request_id: whose news.
        delta: text that is certain now; may be "" while a character or a stop string is incomplete.
        token_ids: new tokens.
        logprobs: one entry a new token when they were asked for.
        finish_reason: None until the end.
        stop_reason: on the last one, see CompletionOutput.
        error: on the last one, when finish_reason is "error".
        usage: on the last one.
        timeline: on the last one.
        seed: of the request's draws.
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
