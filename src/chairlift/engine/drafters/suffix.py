"""SuffixDrafter: proposes what followed the last tokens of a sequence in outputs of earlier requests.

It keeps the newest outputs of all requests in a ring of tokens, each behind a separator and the end of its prompt:

    | -1, end of prompt, output | -1, end of prompt, output | ...        the oldest outputs are overwritten first

A request sees only outputs with its own hash_root, as it sees only their blocks in the prefix cache: those of the same
model, adapter, tenant and salt. An output that helps a request is most of that request's own output, which is kept in
turn, so what is forgotten is what no request produced for the longest time.
"""

from bisect import bisect_right
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from chairlift.core.block_hash import BlockHash
from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters.ngram_index import BYTES_PER_POSITION, NgramIndex, ngram_hash, ngram_hashes
from chairlift.engine.drafters.prompt_lookup import (
    MAX_MATCH,
    TOKENS_PER_MATCHED,
    Match,
    PromptLookupDrafter,
    common_suffix,
)
from chairlift.engine.sequence import Sequence

BYTES_PER_TOKEN = 4 + 2 * BYTES_PER_POSITION + 16
"""Memory of one kept token: its id, a position of each index, and its share of the list of outputs."""
SEPARATOR = -1
"""Stands before each output; no token equals it."""
NUM_PROMPT_TOKENS = 32
"""Last tokens of the prompt that are kept before an output, so that its start can be guessed."""
MIN_OUTPUT_TOKENS = 8
"""Shorter outputs are not kept: there is little to guess, and the list of outputs would outgrow its share."""
MAX_OUTPUT_TOKENS = 32_768
"""Tokens of an output that are kept, the last ones: more would take longer than a step."""
MAX_PLACES = 24
"""Earlier places of an n-gram that are compared, the newest first."""
MAX_VOTES = 8
"""Places of longest matches that a proposal starts with."""
MIN_PROBABILITY = 0.25
"""A proposal ends before the token where fewer of the places that it started with agree."""


class SuffixDrafter:
    """Looks up the last tokens of a sequence in earlier outputs with the same hash_root.

    Where the sequence itself has a longer match, it proposes nothing and leaves the sequence to prompt lookup.
    """

    name = "suffix"

    def __init__(self, config: SpeculationConfig, prompt_lookup: PromptLookupDrafter) -> None:
        """Reserve memory of config.suffix_max_bytes, which is used as outputs come; prompt_lookup comes after it."""
        self._prompt_lookup = prompt_lookup
        self._capacity = max(4 * MAX_MATCH, config.suffix_max_bytes // BYTES_PER_TOKEN)
        self._tokens_array: NDArray[np.int32] = np.zeros(self._capacity, np.int32)
        self._tokens = self._tokens_array.data  # the same memory; an item of a memoryview is read faster
        self._indexes = [(size, NgramIndex(self._capacity)) for size in config.ngram_sizes[:2]]
        self._end = 0  # tokens kept so far, overwritten ones included; a position is a number below it
        self._starts: list[int] = []  # positions of the separators, ascending
        self._roots: list[BlockHash] = []  # of the output behind each separator
        self._grade = 0  # of the latest proposal

    @property
    def num_outputs(self) -> int:
        """Outputs that are kept."""
        return len(self._starts)

    def learn(self, sequence: Sequence) -> None:
        """Keep the output of a sequence; of a long one its last tokens, which fit into half of the memory."""
        most = min(MAX_OUTPUT_TOKENS, self._capacity // 2)
        output = sequence.token_ids[max(sequence.num_prompt_tokens, len(sequence.token_ids) - most) :]
        if len(output) < MIN_OUTPUT_TOKENS:
            return
        context = sequence.token_ids[: len(sequence.token_ids) - len(output)][-NUM_PROMPT_TOKENS:]
        tokens = np.array([SEPARATOR, *context, *output], np.int64)
        start, self._end = self._end, self._end + len(tokens)
        self._tokens_array[np.arange(start, self._end) % self._capacity] = tokens
        self._starts.append(start)
        self._roots.append(sequence.hash_root)
        num_overwritten = bisect_right(self._starts, self._end - self._capacity - 1)
        del self._starts[:num_overwritten], self._roots[:num_overwritten]
        salt = _salt(sequence.hash_root)
        for size, index in self._indexes:
            # From the token before the first output token to the one before the last.
            place = max(len(context), size)
            index.add_all(start + place, ngram_hashes(tokens[place - size + 1 : -1], size, salt))

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return at most `limit` tokens, as many as prompt lookup; each is the one that most of the places had."""
        length, places = self._find(sequence)
        self._grade = Match(length, 0).grade
        limit = min(limit, TOKENS_PER_MATCHED * length, MAX_MATCH)
        proposal: list[int] = []
        least = MIN_PROBABILITY * len(places)
        while places and len(proposal) < limit:
            tokens = list(map(self._token_behind, places))
            # Of equally frequent ones the first, which is the newest.
            token = max(tokens, key=tokens.count) if len(tokens) > 1 else tokens[0]
            if token == SEPARATOR or tokens.count(token) < least:
                break
            proposal.append(token)
            places = [place + 1 for place, each in zip(places, tokens, strict=True) if each == token]
        return proposal

    def grade(self, sequence: Sequence) -> int:
        """See GradesProposals."""
        return self._grade

    def _find(self, sequence: Sequence) -> tuple[int, list[int]]:
        """Return the length of the longest matches, and their positions, the newest first.

        There are none if the sequence itself has a longer one.
        """
        token_ids, root = sequence.token_ids, sequence.hash_root
        if not self._starts:
            return 0, []
        salt, own_length = _salt(root), self._prompt_lookup.match(sequence).length
        longest, places = 0, list[int]()
        for size, index in self._indexes:
            if size > len(token_ids):
                continue
            for position in index.find(ngram_hash(token_ids[-size:], salt), self._starts[0], MAX_PLACES):
                length = self._match_length(position, token_ids)
                if length < max(size, longest) or not self._is_of(position, root):
                    continue
                if length > longest:
                    longest, places = length, []
                places.append(position)
                if length == MAX_MATCH and len(places) == MAX_VOTES:
                    break
            if places:
                break
        return (longest, places[:MAX_VOTES]) if longest >= own_length else (0, [])

    def _match_length(self, position: int, token_ids: list[int]) -> int:
        """Return how many tokens up to a position equal the last ones of token_ids, at most MAX_MATCH."""
        slot = position % self._capacity
        if slot >= MAX_MATCH:  # the usual case: no compared token lies behind the end of the ring
            return common_suffix(self._tokens, slot, token_ids)
        first = max(self._starts[0], position + 1 - MAX_MATCH)
        tokens = [self._tokens[each % self._capacity] for each in range(first, position + 1)]
        return common_suffix(tokens, len(tokens) - 1, token_ids)

    def _is_of(self, position: int, root: BlockHash) -> bool:
        """Return whether the output at a position has this hash_root."""
        return self._roots[bisect_right(self._starts, position) - 1] == root

    def _token_behind(self, position: int) -> int:
        """Return the token after a position; SEPARATOR at the end of an output."""
        return self._tokens[(position + 1) % self._capacity] if position + 1 < self._end else SEPARATOR


def _salt(root: BlockHash) -> int:
    """Return the start of hashes of n-grams, so that outputs of other roots are rarely in the same chain."""
    return int.from_bytes(root[:8], "little")
