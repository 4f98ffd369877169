"""Scores: log-probabilities in the two shapes that OpenAI has for them."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from chairlift.core.request import TokenLogprob
from chairlift.text.token_pieces import TokenPieces

LEAST = -9999.0
"""What stands for minus infinity, which JSON cannot say."""


class ChatScores:
    """Of /v1/chat/completions: an entry a token, each with its bytes."""

    def __init__(self, pieces: TokenPieces, top: int) -> None:
        self._pieces = pieces
        self._top = top

    def of(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the scores of new tokens."""
        content = [
            {**self._entry(each.token_id, each.logprob),
             "top_logprobs": [self._entry(token, logprob) for token, logprob in each.top[: self._top]]}
            for each in logprobs
        ]  # fmt: skip
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._pieces.bytes_of(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}


class CompletionScores:
    """Of /v1/completions: lists side by side, and where each token's text begins. One choice's."""

    def __init__(
        self, pieces: TokenPieces, prompt_token_ids: Sequence[int] | None, top: int, resumed: Sequence[int] = ()
    ) -> None:  # fmt: skip
        """Begin; with the ids of a prompt that is echoed, the first of which has no score, those come first.

        Behind tokens from which the output is resumed nothing is said of these and of the prompt once more.
        """
        self._pieces = pieces
        self._top = top
        self._first = None if prompt_token_ids is None else prompt_token_ids[0]
        self._offset = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")  # a token may be a part of a character
        if resumed:
            self._first = None
            for token_id in (*(prompt_token_ids or ()), *resumed):
                self._pass(token_id)

    def of(self, logprobs: Sequence[TokenLogprob], prompt: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """Return the scores of new tokens, of the echoed prompt before those of the output."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if self._first is not None:
            self._add(found, self._first, None, None)
            self._first = None
        for each in (*prompt, *logprobs):
            own = max(each.logprob, LEAST)
            top = {self._pieces.text_of(each.token_id): own}
            for token, logprob in each.top[: self._top]:
                top.setdefault(self._pieces.text_of(token), max(logprob, LEAST))  # of equal texts the likeliest
            self._add(found, each.token_id, own, top)
        return found

    def _add(
        self, found: dict[str, list[Any]], token_id: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:  # fmt: skip
        found["tokens"].append(self._pieces.text_of(token_id))
        found["token_logprobs"].append(logprob)
        found["top_logprobs"].append(top)
        found["text_offset"].append(self._offset)
        self._pass(token_id)

    def _pass(self, token_id: int) -> None:
        self._offset += len(self._decoder.decode(self._pieces.bytes_of(token_id)))
