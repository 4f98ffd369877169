"""NgramIndex: chains of positions by n-gram, in bounded memory."""

import random

import numpy as np

from chairlift.engine.drafters.ngram_index import BYTES_PER_POSITION, NgramIndex, ngram_hash, ngram_hashes
from support_shares import for_each


def test_numpy_gives_the_hashes_of_single_ngrams() -> None:
    tokens = np.array([0, 1, 2, 3, 150_000, 0, 1, 2, 2**31 - 1], np.int64)
    for size in (1, 3, 8):
        for salt in (0, 2**64 - 1):
            hashes = ngram_hashes(tokens, size, salt)
            assert hashes.tolist() == [ngram_hash(tokens[at : at + size].tolist(), salt) for at in range(10 - size)]
    assert not len(ngram_hashes(tokens, 10)) and len(ngram_hashes(tokens, 9)) == 1
    assert ngram_hash([1, 2]) != ngram_hash([2, 1]) and ngram_hash([0]) != ngram_hash([0, 0])


@for_each("capacity", [16, 100, 2**17])
def test_positions_are_found_newest_first_however_they_were_added(capacity: int) -> None:
    rng = random.Random(capacity)
    values = [rng.randrange(2**64) for _ in range(10)]
    added: list[int] = []
    index = NgramIndex(capacity)
    while len(added) < 3 * min(capacity, 300):
        count = rng.randrange(1, 15)
        new = [rng.choice(values) for _ in range(count)]
        if rng.random() < 0.5:
            index.add_all(len(added), np.array(new, np.uint64))
        else:
            for position, value in enumerate(new, start=len(added)):
                index.add(position, value)
        added += new
        oldest = max(0, len(added) - capacity)
        for value in values:
            expected = [place for place in range(len(added) - 1, oldest - 1, -1) if added[place] == value]
            # Other values of the same bucket are in the chain.
            found = [place for place in index.find(value, oldest, 10**9) if added[place] == value]
            assert found == expected


def test_a_search_ends_at_its_limits() -> None:
    index = NgramIndex(64)
    index.add_all(0, np.full(20, 5, np.uint64))
    assert list(index.find(5, 0, 3)) == [19, 18, 17]
    assert list(index.find(5, 18, 9)) == [19, 18] and not list(index.find(5, 20, 9))
    index.add_all(20, np.empty(0, np.uint64))
    assert not list(NgramIndex(64).find(5, 0, 3))


def test_memory_is_as_stated() -> None:
    for capacity in (16, 1000, 2**20 - 1):
        index = NgramIndex(capacity)
        assert index._heads_array.nbytes + index._links_array.nbytes <= BYTES_PER_POSITION * capacity
