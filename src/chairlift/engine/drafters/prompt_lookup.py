"""PromptLookupDrafter: proposes what followed the last tokens of a sequence where they occurred before in it.

Of the earlier places with the longest match, at most prompt_lookup_max tokens, it takes the one with the longest common
past, so that a copy stays at its place of the original although its last tokens occur elsewhere, too; of equal ones
the latest. Where that overlaps the end, the text repeats itself, and the proposal goes on repeating it.

A copy that differs from its original for a few tokens is looked for near the place where it left it:

    original   a b c d e f g h           replaced: the tokens behind as many as differ, before any of them is known
    copy       a b c X ? e f             later: the place behind with the longest match, be it of one token

A few equal tokens are often chance. So a proposal has at most TOKENS_PER_MATCHED times as many tokens as the match, and
matches of about the same length share a grade: how often each grade is right decides how many of its drafts are tried.
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
TOKENS_PER_MATCHED = 4
"""Most tokens of a proposal for each token of its match, and most behind a replaced token."""
MIN_COPY = 8
"""Equal tokens from which on a sequence copies the place, so that it is looked for near it after a difference."""
MAX_DIFFERENCE = 16
"""Tokens after the last place of a copy for which it is looked for near it."""
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
        position: of the last one of them at the earlier place; -1 without a place.
        is_resumed: whether the place is near one that the sequence copied a few tokens ago; `length` may be 0 then,
            for a token that is replaced by another one.
    """

    length: int
    position: int
    is_resumed: bool = False

    @property
    def grade(self) -> int:
        """A number that matches have in common which are about equally good."""
        return min(self.length, MIN_COPY * 2).bit_length() + (8 if self.is_resumed else 0)


NO_MATCH = Match(0, -1)


class SequenceIndex:
    """The n-grams of one sequence's tokens, of the sizes in SpeculationConfig.ngram_sizes."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._sizes = config.ngram_sizes
        self._indexes: list[NgramIndex] = []
        self._num_indexed = 0  # positions before this one are in the indexes
        self._matched = (0, NO_MATCH)  # number of tokens and match of the latest call
        self._copied = (0, -1)  # number of tokens and position at the latest place that was being copied

    def match(self, token_ids: list[int]) -> Match:
        """Return the best earlier place of the last tokens; token_ids are those of the call before and more."""
        num_tokens, match = self._matched
        if num_tokens != len(token_ids):
            # The last position itself is left out, which would match.
            self._index(token_ids, len(token_ids) - 1)
            match = self._find(token_ids)
            if match.length < MIN_COPY and (resumed := self._resume(token_ids)) is not None:
                # A few equal tokens elsewhere say more than none here, and less than as many here.
                match = match if match.length > max(resumed.length, self._sizes[-1] - 1, 2) else resumed
            if match.length >= (2 if match.is_resumed else MIN_COPY):
                self._copied = len(token_ids), match.position
            self._matched = len(token_ids), match
        return match

    def _resume(self, token_ids: list[int]) -> Match | None:
        """Return the place near the latest copied one where it goes on after a difference; None if it is long ago."""
        num_tokens, position = self._copied
        since = len(token_ids) - num_tokens
        if position < 0 or not 0 < since <= MAX_DIFFERENCE:
            return None
        last, end = token_ids[-1], len(token_ids) - 1
        # Here as many tokens were replaced as there are now; elsewhere some were inserted or left out.
        aligned = position + since
        best = Match(0, aligned, is_resumed=True)
        places = [each for each in range(position + 1, min(aligned + MIN_COPY, end)) if token_ids[each] == last]
        for place in sorted(places, key=lambda each: abs(each - aligned)):
            if (length := common_suffix(token_ids, place, token_ids)) > best.length:
                best = Match(length, place, is_resumed=True)
        return best if best.length or (since == 1 and aligned < end) else None

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
        """Return at most `limit` tokens, and no more than a multiple of those that occurred before."""
        match = self.match(sequence)
        if match.position < 0:
            return ()
        position = match.position
        limit = min(limit, TOKENS_PER_MATCHED * (match.length + match.is_resumed), MAX_MATCH)
        proposal = sequence.token_ids[position + 1 : position + 1 + limit]
        # The period of the text is the distance of the two places, and the proposal has at least one period by now.
        period = len(sequence.token_ids) - 1 - position
        while len(proposal) < limit:
            proposal += proposal[len(proposal) - period :][: limit - len(proposal)]
        return proposal

    def grade(self, sequence: Sequence) -> int:
        """See GradesProposals."""
        return self.match(sequence).grade
