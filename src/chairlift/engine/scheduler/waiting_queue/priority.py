"""PriorityQueue: schedules smaller priorities first; waiting time raises a priority, so no request starves."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from chairlift.engine.sequence import Sequence

QueueKey = tuple[float, int, Sequence]
"""(-rank, -arrival, sequence): the head of the queue is the greatest"""


class PriorityQueue:
    """Orders by rank = seconds at which it was queued + priority * ageing; equals in order of arrival.

    `ageing` is how many seconds of waiting are worth one step of priority. All waiting sequences age alike, so their
    order never changes and needs no clock. The bound: a request of priority p is behind a later one of priority q < p
    only if that one arrived less than (p - q) * ageing seconds later. So with q the least priority in use, no request
    that arrives (p - q) * ageing seconds later is ever before it. A request behind it starts earlier only while it does
    not fit (at most max_bypass of them in its life) or waits for another's prefix (step_scheduler.py); several may
    start in the same step.

    A waiting sequence may preempt running ones that have both a greater priority and a greater rank, as long as they
    have not been preempted `protect_after_preemptions` times. A preempted sequence keeps its rank.

    One sorted list holds the queue. Its head is the list's end, where sequences start and victims return: both cost
    O(log n) there. A new arrival moves pointers, 8 bytes for each waiting sequence.
    """

    tracks_service = False
    can_preempt = True

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        self._keys: list[QueueKey] = []

    def rank(self, sequence: Sequence) -> float:
        """Return the rank of a sequence in seconds; smaller goes first."""
        return sequence.timeline_recorder.queued_at + sequence.request.priority * self._ageing

    def _key(self, sequence: Sequence) -> QueueKey:
        return -self.rank(sequence), -sequence.arrival_index, sequence

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in reversed(self._keys))

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at its rank."""
        insort(self._keys, self._key(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        # Sequences start at the head, so nearly always it is the last entry that leaves.
        if self._keys and self._keys[-1][2] is sequence:
            self._keys.pop()
            return
        index = bisect_left(self._keys, self._key(sequence))
        assert self._keys[index][2] is sequence, "the sequence is not in the queue"
        del self._keys[index]

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Do nothing; the order ignores service."""

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Return whether `waiting` has both a smaller priority and a smaller rank."""
        return waiting.request.priority < running.request.priority and self.rank(waiting) < self.rank(running)

    def preemption_rank(self, sequence: Sequence) -> int:
        """Return the priority; the least urgent goes first."""
        return sequence.request.priority
