"""PriorityLine: smaller priority first, but nobody for ever: waiting is worth priority."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from chairlift.engine.sequence import Sequence

QueueKey = tuple[float, int, Sequence]
"""(-rank, -arrival, who): the head of the line is the greatest"""


class PriorityQueue:
    """Order of rank = seconds at which it was queued + priority * ageing; equals in order of arrival.

    `ageing` is how many seconds of waiting are worth one step of priority. Two who wait age alike, so their order never
    changes and needs no clock. The bound: somebody of priority p is behind a later one of priority q < p only if that
    one came less than (p - q) * ageing seconds later; so of those who come (p - q) * ageing seconds after it, with q
    the least priority there is, none is ever before it in line. Whoever is behind it boards before it only while it
    does not fit, at most max_bypass of them in its life, or while it waits for another's prefix (boarding.py); several
    may board in the same step.

    Somebody in line may send those on board away who have both a greater priority and a greater rank, as long as they
    have not been preempted `protect_after_preemptions` times; whoever is sent away keeps its rank.

    Kept as one sorted list whose head is its end, where a seat is taken and a victim returns: there both cost
    O(log n). A new arrival moves pointers, 8 bytes for each in line.
    """

    tracks_service = False
    can_preempt = True

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        self._places: list[QueueKey] = []

    def rank(self, sequence: Sequence) -> float:
        """Its place in time; smaller boards first."""
        return sequence.timeline_recorder.queued_at + sequence.request.priority * self._ageing

    def _place(self, sequence: Sequence) -> QueueKey:
        return -self.rank(sequence), -sequence.arrival_index, sequence

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in reversed(self._places))

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in at its rank."""
        insort(self._places, self._place(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        if self._places and self._places[-1][2] is sequence:
            self._places.pop()
            return
        index = bisect_left(self._places, self._place(sequence))
        assert self._places[index][2] is sequence, "it is not in line"
        del self._places[index]

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Nothing that matters here."""

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Whether it is both more urgent by itself and ahead in line."""
        return waiting.request.priority < riding.request.priority and self.rank(waiting) < self.rank(riding)

    def preemption_rank(self, sequence: Sequence) -> int:
        """The least urgent first."""
        return sequence.request.priority
