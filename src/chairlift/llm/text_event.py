"""TextEvent, StreamOutput: the results of the text service, streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.core.errors import ChairliftError
from chairlift.core.request_timeline import Timeline
from chairlift.llm.outputs import CompletionOutput
from chairlift.text.token_pieces import TokenPieces


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
        prompt_logprobs: one entry for each further prompt token except the first, when requested; each choice has all
            of them before its first token.
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


@dataclass(slots=True)
class ChoiceHistory:
    """What the events of one choice brought so far; only grows."""

    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamOutput(TextEvent):
    """A TextEvent of AsyncLLM that also has the attributes of vLLM's RequestOutput.

    Attributes:
        prompt: the prompt's text; None when the prompt came as ids.
        prompt_token_ids: the prompt's token ids.
        history: the choice with its tokens so far; None for outputs that hold only what is new.
        history_sizes: numbers of parts, tokens and logprobs in `history` up to this event.
        has_logprobs: whether logprobs were requested.
        choices: with RequestOutputKind.FINAL_ONLY all choices, else empty.
        token_pieces: as of CompletionOutput.
    """

    prompt: str | None = None
    prompt_token_ids: Sequence[int] = ()
    history: ChoiceHistory | None = field(default=None, repr=False, compare=False)
    history_sizes: tuple[int, int, int] = (0, 0, 0)
    has_logprobs: bool = False
    choices: Sequence[CompletionOutput] = ()
    token_pieces: TokenPieces | None = field(default=None, repr=False, compare=False)

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The choice that this output belongs to: all of it so far, or what is new with RequestOutputKind.DELTA.

        With RequestOutputKind.FINAL_ONLY all choices.
        """
        if self.choices:
            return list(self.choices)
        if self.history is None:
            text, token_ids, logprobs = self.delta, list(self.token_ids), list(self.logprobs)
        else:
            parts, tokens, entries = self.history_sizes
            text, token_ids = "".join(self.history.parts[:parts]), self.history.token_ids[:tokens]
            logprobs = self.history.logprobs[:entries]
        return [CompletionOutput(
            self.index, text, token_ids, logprobs if self.has_logprobs else None, self.finish_reason,
            self.stop_reason, self.seed, self.token_pieces,
        )]  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether this is the last output of the request."""
        return self.is_final

    @property
    def num_cached_tokens(self) -> int | None:
        """Number of prompt tokens from the prefix cache; None before the last output."""
        return None if self.usage is None else self.usage.cached_tokens
