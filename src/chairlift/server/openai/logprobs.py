"""ChatLogprobs and CompletionLogprobs: format log-probabilities in the two shapes of OpenAI's API."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from chairlift.core.engine_output import TokenLogprob
from chairlift.text.token_pieces import TokenPieces

MIN_LOGPROB = -9999.0
"""Log-probability that stands for minus infinity, which JSON cannot express."""


class ChatLogprobs:
    """Formats logprobs of /v1/chat/completions: one entry per token, each with its bytes."""

    def __init__(self, pieces: TokenPieces, top: int) -> None:
        self._pieces = pieces
        self._top = top

    def of(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the logprobs of new tokens."""
        content = [
            {**self._entry(each.token_id, each.logprob),
             "top_logprobs": [self._entry(token, logprob) for token, logprob in each.top[: self._top]]}
            for each in logprobs
        ]  # fmt: skip
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._pieces.bytes_of(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(raw)}


class CompletionLogprobs:
    """Formats logprobs of one choice of /v1/completions: parallel lists with each token's text offset."""

    def __init__(
        self, pieces: TokenPieces, prompt_token_ids: Sequence[int] | None, top: int, resumed: Sequence[int] = ()
    ) -> None:  # fmt: skip
        """Start a choice; an echoed prompt's tokens come first, and the first of them has no logprob.

        Where the output resumes from `resumed` tokens, these and the prompt's are not reported again.
        """
        self._pieces = pieces
        self._top = top
        self._first = None if prompt_token_ids is None else prompt_token_ids[0]
        self._reports_prompt = not resumed
        self._offset = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")  # a token may be a part of a character
        if resumed:
            self._first = None
            for token_id in (*(prompt_token_ids or ()), *resumed):
                self._advance(token_id)

    def of(self, logprobs: Sequence[TokenLogprob], prompt: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """Return the logprobs of new tokens, those of the echoed prompt before those of the output."""
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if self._first is not None:
            self._add(columns, self._first, None, None)
            self._first = None
        for each in (*(prompt if self._reports_prompt else ()), *logprobs):
            own = max(each.logprob, MIN_LOGPROB)
            top = {self._pieces.text_of(each.token_id): own}
            for token, logprob in each.top[: self._top]:
                top.setdefault(
                    self._pieces.text_of(token), max(logprob, MIN_LOGPROB)
                )  # of tokens with equal text the likeliest stays
            self._add(columns, each.token_id, own, top)
        return columns

    def _add(
        self, columns: dict[str, list[Any]], token_id: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:  # fmt: skip
        columns["tokens"].append(self._pieces.text_of(token_id))
        columns["token_logprobs"].append(logprob)
        columns["top_logprobs"].append(top)
        columns["text_offset"].append(self._offset)
        self._advance(token_id)

    def _advance(self, token_id: int) -> None:
        self._offset += len(self._decoder.decode(self._pieces.bytes_of(token_id)))
