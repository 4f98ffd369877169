"""CacheAwareLine: whose prefix lies in the cache boards first, but waiting time always wins in the end."""

from collections.abc import Iterator
from itertools import chain, islice

from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence

WINDOW = 128
"""So many, the oldest, are compared."""

MAX_DELAY_RATIO = 0.25
"""Share of the line before it by which a request's turn may be put off."""

MIN_BYPASSES = 8
"""Others that may pass a request however short the line was."""


class CacheAwareQueue:
    """Among the WINDOW oldest the longest cached prefix first, equals in order of arrival.

    A request that found n before it is due when n + max(LEAST_PATIENCE, PATIENCE * n) have left the line since, and
    those that are due board first, in order of arrival. So its turn is put off by about a PATIENCE-th of what its wait
    would be under fifo. A victim that returns is due at once.
    """

    tracks_service = False
    can_preempt = False

    def __init__(self, cache: KVCacheManager) -> None:
        self._cache = cache
        self._line = FifoQueue()
        self._due: dict[int, int] = {}
        self._prefixes: dict[int, int] = {}
        self._left = 0

    def __len__(self) -> int:
        return len(self._line)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in at its place of arrival."""
        ahead = len(self._line)
        due = self._left if sequence.epoch else self._left + ahead + max(MIN_BYPASSES, int(MAX_DELAY_RATIO * ahead))
        self._due[sequence.arrival_index] = due
        self._line.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        self._line.remove(sequence)
        del self._due[sequence.arrival_index]
        self._prefixes.pop(sequence.arrival_index, None)
        self._left += 1

    def __iter__(self) -> Iterator[Sequence]:
        """Those that are due, then the others of the window by prefix, then the rest."""
        oldest = iter(self._line)
        window = list(islice(oldest, WINDOW))
        due = [sequence for sequence in window if self._due[sequence.arrival_index] <= self._left]
        others = [sequence for sequence in window if self._due[sequence.arrival_index] > self._left]
        others.sort(key=self._prefix, reverse=True)
        return chain(due, others, oldest)

    def _prefix(self, sequence: Sequence) -> int:
        """Its cached leading blocks, looked for where they ended last time."""
        last = self._prefixes.get(sequence.arrival_index, 0)
        found = self._cache.prefix_blocks(sequence.block_hashes, len(sequence.token_ids), last)
        self._prefixes[sequence.arrival_index] = found
        return found

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Nothing that matters here."""

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Nobody."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """All alike."""
        return 0
