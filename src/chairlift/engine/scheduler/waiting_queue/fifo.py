"""FifoLine: first come, first served."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from chairlift.engine.sequence import Sequence

_arrival = attrgetter("arrival")


class FifoLine:
    """Order of arrival, also for those that were preempted.

    New arrivals append to a linked dict; the few that return lie in a short sorted list. Every operation is O(1) in
    the length of the line (O(returned) for a return).
    """

    counts_service = False
    sends_away = False

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
        if sequence.arrival > self._newest:
            self._newest = sequence.arrival
            self._fresh[sequence.arrival] = sequence
        else:
            insort(self._returned, sequence, key=_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        if self._fresh.pop(sequence.arrival, None) is None:
            self._returned.remove(sequence)

    def served(self, tenant: str, num_tokens: int) -> None:
        """Nothing that matters here."""

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Nobody."""
        return False

    def expendable(self, sequence: Sequence) -> int:
        """All alike."""
        return 0
