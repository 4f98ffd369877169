"""Order of the waiting line: one small class a policy, and the names users choose them by."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.engine.sequence import Sequence

_arrival = attrgetter("arrival")


class Line(Protocol):
    """Waiting sequences in the order in which they should board. A victim that returns keeps its place."""

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in, new or returning."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take it out; it must be in."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Walk the line from its head; the line does not change meanwhile."""
        ...

    def __len__(self) -> int:
        """Return how many wait."""
        ...


class FifoLine:
    """First come, first served: order of arrival, also for those that were preempted.

    New arrivals append to a linked dict; the few that return lie in a short sorted list. Every operation is O(1) in
    the length of the line (O(returned) for a return).
    """

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


POLICIES: dict[str, Callable[[], Line]] = {"fifo": FifoLine}


def make_line(name: str) -> Line:
    """Make the line of that name. Raises ConfigError naming those that exist."""
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; there is {', '.join(sorted(POLICIES))}", option="policy")
    return POLICIES[name]()
