"""TokenHistory, BadWords: find the tokens that repeated n-grams and bad words ban next, by the rules of transformers.

no_repeat_ngram_size n   a token is banned if it would end a run of n tokens that occurred before, in prompt or output
bad words                the last id of each is banned directly after the others; a word of one id is always banned
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class TokenHistory:
    """The token ids of one request, prompt and output, in an array that grows."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._size = len(token_ids)
        self._ids = np.zeros(self._size + max(64, self._size), np.int64)
        self._ids[: self._size] = token_ids

    @property
    def ids(self) -> Int64:
        """All token ids, int64 [n]; a view."""
        return self._ids[: self._size]

    def add(self, token: int) -> None:
        """Append one token id."""
        if self._size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[self._size] = token
        self._size += 1


def repeated_ngram_tokens(ids: Int64, size: int) -> Int64:
    """Return the tokens, each once, that would end a run of `size` (at least 1) tokens that already occurs in ids."""
    ends = np.arange(size - 1, len(ids))  # positions where such a run can end
    for back in range(1, size):
        ends = ends[ids[ends - back] == ids[-back]]
        if not len(ends):
            break
    return np.unique(ids[ends])


class BadWords:
    """The bad words of one request.

    Attributes:
        always: ids that are a word by themselves, int64 [n].
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.always = np.array(sorted({word[0] for word in words if len(word) == 1}), np.int64)
        self._longer = [(np.array(word[:-1], np.int64), word[-1]) for word in words if len(word) > 1]

    def next(self, ids: Int64) -> Int64:
        """Return the ids that would end one of the longer words directly after these ids."""
        last_ids = {last for start, last in self._longer if np.array_equal(ids[len(ids) - len(start) :], start)}
        return np.array(sorted(last_ids), np.int64)

    @property
    def needs_tail(self) -> bool:
        """Whether a ban depends on the tokens before."""
        return bool(self._longer)
