"""NgramIndex: finds the earlier positions of an n-gram among the newest tokens of a text that only grows.

Positions with n-grams of one hash form a chain, the newest first. Memory is allocated once and never grows: a position
that is `capacity` tokens old is overwritten, and a chain ends where its next position is older than the caller allows.
Positions with other n-grams of the same bucket are in the chain, too, so that the caller compares the tokens.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

BYTES_PER_POSITION = 16
"""Memory of an index for each position: one link of a chain, and at most one start of a chain, int64 each."""

_FACTOR = 0x9E3779B97F4A7C15  # odd, 2^64 / golden ratio
_MASK = 2**64 - 1


def ngram_hash(tokens: Items[int], salt: int = 0) -> int:
    """Return a hash of 64 bits of one n-gram."""
    value = salt
    for token in tokens:
        value = (value + token + 1) * _FACTOR & _MASK
        value ^= value >> 29
    return value


def ngram_hashes(tokens: NDArray[np.int64], size: int, salt: int = 0) -> NDArray[np.uint64]:
    """Return ngram_hash of each n-gram of tokens [N], in order: uint64 [N - size + 1], or [0] for fewer tokens."""
    count = max(0, len(tokens) - size + 1)
    values = np.full(count, salt, np.uint64)
    steps = tokens.astype(np.uint64) + np.uint64(1)
    for place in range(size if count else 0):
        values = (values + steps[place : place + count]) * np.uint64(_FACTOR)
        values ^= values >> np.uint64(29)
    return values


class NgramIndex:
    """Chains of positions by the hash of the n-gram that ends there. Positions are added in ascending order."""

    def __init__(self, capacity: int) -> None:
        """Allocate an index of `capacity` positions, at least 16 and less than 2^32, which touches no memory yet."""
        bits = capacity.bit_length() - 1
        self.capacity = capacity
        self._shift = 64 - bits
        # 0 is the end of a chain; a position is kept plus 1.
        self._heads_array: NDArray[np.int64] = np.zeros(2**bits, np.int64)
        self._links_array: NDArray[np.int64] = np.zeros(capacity, np.int64)
        # The same memory; an item of a memoryview is read in a third of the time.
        self._heads, self._links = self._heads_array.data, self._links_array.data

    def add(self, position: int, value: int) -> None:
        """Add one position, whose n-gram has the hash `value`."""
        bucket = value >> self._shift
        self._links[position % self.capacity] = self._heads[bucket]
        self._heads[bucket] = position + 1

    def add_all(self, first: int, values: NDArray[np.uint64]) -> None:
        """Add as many positions from `first` on as there are hashes, at most `capacity`."""
        if not len(values):
            return
        buckets = (values >> np.uint64(self._shift)).astype(np.uint32)
        order = _stable_order(buckets)
        grouped = buckets[order]
        positions = order + (first + 1)
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = grouped[1:] != grouped[:-1]
        links = np.empty(len(order), np.int64)
        links[1:] = positions[:-1]
        links[is_first] = self._heads_array[grouped[is_first]]
        self._links_array[(positions - 1) % self.capacity] = links
        is_last = np.roll(is_first, -1)
        self._heads_array[grouped[is_last]] = positions[is_last]

    def find(self, value: int, oldest: int, limit: int) -> Iterator[int]:
        """Yield at most `limit` positions of the chain of a hash that are at least `oldest`, the newest first."""
        position = self._heads[value >> self._shift] - 1
        while position >= oldest and limit:
            yield position
            position = self._links[position % self.capacity] - 1
            limit -= 1


def _stable_order(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return np.argsort(numbers, kind="stable") in linear time, by halves of 16 bits, which NumPy sorts by radix."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    upper = (numbers >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(upper[order], kind="stable")] if upper.any() else order
