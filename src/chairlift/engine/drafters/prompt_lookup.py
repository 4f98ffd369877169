"""PromptLookupDrafter: proposes what followed the last tokens of a sequence where they occurred before in it.

Of the earlier places with the longest match, at most prompt_lookup_max tokens, it takes the one with the longest common
past, so that a copy stays at its place of the original although its last tokens occur elsewhere, too; of equal ones
the latest. Where that overlaps the end, the text repeats itself, and the proposal goes on repeating it.

A proposal has at most as many tokens as the match: a few equal tokens are often chance, and in text that copies nothing
this halves the rejected drafts. In a copy the match soon has MAX_MATCH tokens.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters.ngram_index import NgramIndex, ngram_hash, ngram_hashes
from chairlift.engine.sequence import Sequence

MAX_PLACES = 32
"""Earlier places of an n-gram that are compared, the latest first."""
MAX_MATCH = 64
"""Tokens up to two places that are compared, and most tokens of a proposal."""
MIN_CAPACITY = 256
"""Tokens for which a sequence's index has memory at first."""
MIN_BULK_TOKENS = 48
"""New tokens from which on they are indexed at once by numpy."""
MAX_BULK_TOKENS = 8_192
"""Tokens that are indexed in one call, so that a long prompt makes no step slow: its end is known after a few calls."""


class Match(NamedTuple):
    """An earlier place whose last tokens are those of a sequence.

    Attributes:
        length: tokens that are equal, at most MAX_MATCH; 0 for none.
        position: of the last one of them at the earlier place.
    """

    length: int
    position: int


NO_MATCH = Match(0, -1)


class SequenceIndex:
    """The n-grams of one sequence's tokens, of the sizes prompt_lookup_min and prompt_lookup_max."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._sizes = config.ngram_sizes
        self._indexes: list[NgramIndex] = []
        self._num_indexed = 0  # positions before this one are in the indexes
        self._matched = (0, NO_MATCH)  # number of tokens and match of the latest call

    def match(self, token_ids: list[int]) -> Match:
        """Return the best earlier place of the last tokens; token_ids are those of the call before and more."""
        num_tokens, match = self._matched
        if num_tokens != len(token_ids):
            # The last position itself is left out, which would match.
            self._index(token_ids, len(token_ids) - 1)
            match = self._find(token_ids)
            self._matched = len(token_ids), match
        return match

    def _find(self, token_ids: list[int]) -> Match:
        best = NO_MATCH
        for size, index in zip(self._sizes, self._indexes, strict=True):
            if size >= len(token_ids):
                continue
            for position in index.find(ngram_hash(token_ids[-size:]), size - 1, MAX_PLACES):
                length = common_suffix(token_ids, position, token_ids)
                if length >= size and length > best.length:
                    best = Match(length, position)
                    if length == MAX_MATCH:
                        break
            if best.length:
                break
        return best

    def _index(self, token_ids: list[int], end: int) -> None:
        """Index the positions before `end`, at most MAX_BULK_TOKENS of them."""
        if not self._indexes or end > self._indexes[0].capacity:
            capacity = max(MIN_CAPACITY, 1 << end.bit_length())
            self._indexes = [NgramIndex(capacity) for _ in self._sizes]
            self._num_indexed = 0
        start = self._num_indexed
        self._num_indexed = end = min(end, start + MAX_BULK_TOKENS)
        if end - start >= MIN_BULK_TOKENS:
            first = max(0, start - self._sizes[0] + 1)
            tokens = np.array(token_ids[first:end], np.int64)
            for size, index in zip(self._sizes, self._indexes, strict=True):
                position = max(start, size - 1)
                index.add_all(position, ngram_hashes(tokens[position - size + 1 - first :], size))
            return
        for size, index in zip(self._sizes, self._indexes, strict=True):
            for position in range(max(start, size - 1), end):
                index.add(position, ngram_hash(token_ids[position + 1 - size : position + 1]))


def common_suffix(tokens: Items[int], position: int, token_ids: list[int]) -> int:
    """Return how many tokens up to `position` equal the last ones of token_ids, at most MAX_MATCH."""
    longest = min(MAX_MATCH, position + 1, len(token_ids))
    length = 0
    while length < longest and tokens[position - length] == token_ids[-1 - length]:
        length += 1
    return length


class PromptLookupDrafter:
    """Looks up the last tokens of a sequence in its own prompt and output."""

    name = "ngram"

    def __init__(self, config: SpeculationConfig) -> None:
        self._config = config
        self._indexes: WeakKeyDictionary[Sequence, SequenceIndex] = WeakKeyDictionary()

    def match(self, sequence: Sequence) -> Match:
        """Return the earlier place in a sequence that propose() takes."""
        index = self._indexes.get(sequence)
        if index is None:
            index = self._indexes[sequence] = SequenceIndex(self._config)
        return index.match(sequence.token_ids)

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return at most `limit` tokens, and no more than the number of last ones that occurred before."""
        length, position = self.match(sequence)
        limit = min(limit, length)
        if not limit:
            return ()
        proposal = sequence.token_ids[position + 1 : position + 1 + limit]
        # The period of the text is the distance of the two places, and the proposal has at least one period by now.
        period = len(sequence.token_ids) - 1 - position
        while len(proposal) < limit:
            proposal += proposal[len(proposal) - period :][: limit - len(proposal)]
        return proposal
