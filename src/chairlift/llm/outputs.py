"""RequestOutput, CompletionOutput: the results of the text service, whole for scripts."""

from dataclasses import dataclass, field

from chairlift.core.engine_output import FinishReason, TokenLogprob, Usage
from chairlift.core.errors import ChairliftError
from chairlift.core.request_timeline import Timeline
from chairlift.text.token_pieces import TokenPieces


@dataclass(frozen=True, slots=True)
class Logprob:
    """The logprob of one token at one position.

    Attributes:
        logprob: natural logarithm of the probability, of the raw logits.
        rank: 1 for the likeliest token; None for a sampled token that is not among the requested likeliest.
        decoded_token: the token as text, U+FFFD for a part of a character; None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


def logprobs_by_token(entry: TokenLogprob, pieces: TokenPieces | None) -> dict[int, Logprob]:
    """Return token id -> Logprob of the sampled token, which comes first, and of the likeliest ones."""
    logprobs = {entry.token_id: entry.logprob} | dict(entry.top)
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
    return {
        token: Logprob(
            logprob, ranks.get(token), None if pieces is None else pieces.bytes_of(token).decode(errors="replace")
        )
        for token, logprob in logprobs.items()
    }  # fmt: skip


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request.

    Attributes:
        index: index of the choice.
        text: the output as text; "" when the model folder has no tokenizer.
        token_ids: every generated token, the stop token included.
        token_logprobs: one entry for each token when requested, else None; none for resumed tokens.
        finish_reason: "stop", "length", "abort" or "error".
        stop_reason: the stop string that ended the choice, or the id of the stop token; None otherwise.
        seed: the sampling seed; the same request with this seed gives the same tokens.
        token_pieces: the text of single tokens, for `logprobs`; None without a tokenizer.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int = 0
    token_pieces: TokenPieces | None = field(default=None, repr=False, compare=False)
    _logprobs: list[dict[int, Logprob]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """For each token, token id -> Logprob of it and of the likeliest ones; None unless requested."""
        if self.token_logprobs is None:
            return None
        new = self.token_logprobs[len(self._logprobs) :]
        self._logprobs += [logprobs_by_token(entry, self.token_pieces) for entry in new]
        return self._logprobs

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the logprobs of the tokens; None unless logprobs were requested."""
        return None if self.token_logprobs is None else sum(entry.logprob for entry in self.token_logprobs)

    def finished(self) -> bool:
        """Return whether the choice has ended."""
        return self.finish_reason is not None


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
        prompt_token_logprobs: one entry for each prompt token when requested, None for the first; else None.
        token_pieces: as of CompletionOutput, for `prompt_logprobs`.
        embedding: of a request for an embedding that did not fail: float32 bytes of the pooled hidden states.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    timeline: Timeline | None = None
    error: ChairliftError | None = None
    prompt_token_logprobs: list[TokenLogprob | None] | None = None
    token_pieces: TokenPieces | None = field(default=None, repr=False, compare=False)
    embedding: bytes = b""
    _logprobs: list[dict[int, Logprob] | None] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def finished(self) -> bool:
        """True: a RequestOutput is made when its request has ended."""
        return True

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens from the prefix cache."""
        return self.usage.cached_tokens

    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """For each prompt token, token id -> Logprob; None for the first, and None unless requested."""
        if self.prompt_token_logprobs is None:
            return None
        new, pieces = self.prompt_token_logprobs[len(self._logprobs) :], self.token_pieces
        self._logprobs += [None if entry is None else logprobs_by_token(entry, pieces) for entry in new]
        return self._logprobs
