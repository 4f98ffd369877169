"""FifoQueue: schedules sequences in order of arrival."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from chairlift.engine.sequence import Sequence

_arrival = attrgetter("arrival_index")


class FifoQueue:
    """Keeps the order of arrival, also for preempted sequences.

    New arrivals append to a linked dict; the few preempted sequences lie in a short sorted list. Every operation is
    O(1) in the length of the queue (O(preempted) for a preempted sequence).
    """

    tracks_service = False
    can_preempt = False

    def __init__(self) -> None:
        self._arrivals: OrderedDict[int, Sequence] = OrderedDict()
        self._preempted: list[Sequence] = []
        self._newest = -1

    def __len__(self) -> int:
        return len(self._arrivals) + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        if not self._preempted:
            return iter(self._arrivals.values())
        return merge(self._preempted, self._arrivals.values(), key=_arrival)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at its place of arrival."""
        if sequence.arrival_index > self._newest:
            self._newest = sequence.arrival_index
            self._arrivals[sequence.arrival_index] = sequence
        else:
            # Also a deferred choice, where later requests have arrived meanwhile.
            insort(self._preempted, sequence, key=_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        if self._arrivals.pop(sequence.arrival_index, None) is None:
            self._preempted.remove(sequence)

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Do nothing; the order ignores service."""

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Return False; no sequence outranks another."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """Return the same rank for all."""
        return 0
