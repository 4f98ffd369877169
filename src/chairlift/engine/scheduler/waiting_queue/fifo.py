"""FifoLine: first come, first served."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from chairlift.engine.sequence import Sequence

_arrival = attrgetter("arrival_index")


class FifoQueue:
    """Order of arrival, also for those that were preempted.

    New arrivals append to a linked dict; the few that return lie in a short sorted list. Every operation is O(1) in
    the length of the line (O(returned) for a return).
    """

    tracks_service = False
    can_preempt = False

    def __init__(self) -> None:
        self._fresh: OrderedDict[int, Sequence] = OrderedDict()
        self._returned: list[Sequence] = []
        self._newest = -1

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[Sequence]:
        if not self._returned:
            return iter(self._fresh.values())
        return merge(self._returned, self._fresh.values(), key=_arrival)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in at its place of arrival."""
        if sequence.arrival_index > self._newest:
            self._newest = sequence.arrival_index
            self._fresh[sequence.arrival_index] = sequence
        else:
            insort(self._returned, sequence, key=_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        if self._fresh.pop(sequence.arrival_index, None) is None:
            self._returned.remove(sequence)

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Nothing that matters here."""

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Nobody."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """All alike."""
        return 0
