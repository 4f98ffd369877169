"""CacheAwareQueue: schedules the longest cached prefix first, with a bound on the extra wait."""

from collections.abc import Iterator
from itertools import chain, islice

from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence

WINDOW = 128
"""Number of oldest sequences whose prefixes are compared."""

MAX_DELAY_RATIO = 0.25
"""Share of the queue ahead of a request by which the request may be delayed."""

MIN_BYPASSES = 8
"""Bypasses that every request allows, however short the queue was."""


class CacheAwareQueue:
    """Puts the longest cached prefix first among the WINDOW oldest; equals in order of arrival.

    A request that arrives behind n others is due when n + max(MIN_BYPASSES, MAX_DELAY_RATIO * n) sequences have left
    the queue since. Due requests go first, in order of arrival. So a request waits about MAX_DELAY_RATIO longer than
    under fifo. A preempted sequence is due at once.
    """

    tracks_service = False
    can_preempt = False

    def __init__(self, cache: KVCacheManager) -> None:
        self._cache = cache
        self._queue = FifoQueue()
        self._due: dict[int, int] = {}
        self._prefixes: dict[int, int] = {}
        self._num_dequeued = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at its place of arrival."""
        ahead = len(self._queue)
        due = (
            self._num_dequeued
            if sequence.epoch
            else self._num_dequeued + ahead + max(MIN_BYPASSES, int(MAX_DELAY_RATIO * ahead))
        )
        self._due[sequence.arrival_index] = due
        self._queue.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        self._queue.remove(sequence)
        del self._due[sequence.arrival_index]
        self._prefixes.pop(sequence.arrival_index, None)
        self._num_dequeued += 1

    def __iter__(self) -> Iterator[Sequence]:
        """Yield due sequences, then the others of the window by prefix, then the rest."""
        oldest = iter(self._queue)
        window = list(islice(oldest, WINDOW))
        due = [sequence for sequence in window if self._due[sequence.arrival_index] <= self._num_dequeued]
        others = [sequence for sequence in window if self._due[sequence.arrival_index] > self._num_dequeued]
        others.sort(key=self._prefix, reverse=True)
        return chain(due, others, oldest)

    def _prefix(self, sequence: Sequence) -> int:
        """Return the number of cached leading blocks; the search starts where the last one ended."""
        last = self._prefixes.get(sequence.arrival_index, 0)
        num_blocks = self._cache.prefix_blocks(sequence.block_hashes, len(sequence.token_ids), last)
        self._prefixes[sequence.arrival_index] = num_blocks
        return num_blocks

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Do nothing; the order ignores service."""

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Return False; no sequence outranks another."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """Return the same rank for all."""
        return 0
