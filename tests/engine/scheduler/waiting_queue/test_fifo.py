"""FifoQueue: keeps the order of arrival, whatever is added and removed."""

import random

import pytest

from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence
from support_engine import make_request


def sequences(count: int) -> list[Sequence]:
    return [Sequence(make_request(str(number), 3), number, b"root", 0.0) for number in range(count)]


def order(queue: FifoQueue) -> list[int]:
    return [sequence.arrival_index for sequence in queue]


def test_a_victim_returns_to_its_place() -> None:
    """Pitfall 11: a preempted sequence keeps its place in the queue."""
    queue, all_of_them = FifoQueue(), sequences(5)
    for sequence in all_of_them:
        queue.add(sequence)
    for arrival in (1, 0, 3):
        queue.remove(all_of_them[arrival])
    assert order(queue) == [2, 4]
    for arrival in (3, 0, 1):
        queue.add(all_of_them[arrival])
    assert order(queue) == [0, 1, 2, 3, 4] and len(queue) == 5


def test_any_coming_and_going_keeps_the_order_of_arrival() -> None:
    rng, queue, inside, outside = random.Random(3), FifoQueue(), list[Sequence](), sequences(40)
    for _ in range(500):
        if outside and rng.random() < 0.5:
            # New sequences come in order; earlier ones may come back at any time.
            back = [sequence for sequence in outside if sequence.epoch]
            fresh = [sequence for sequence in outside if not sequence.epoch][:1]
            chosen = rng.choice(back + fresh)
            chosen.epoch += 1
            outside.remove(chosen)
            inside.append(chosen)
            queue.add(chosen)
        elif inside:
            chosen = rng.choice(inside)
            inside.remove(chosen)
            outside.append(chosen)
            queue.remove(chosen)
        assert order(queue) == sorted(sequence.arrival_index for sequence in inside) and len(queue) == len(inside)


def test_a_sequence_that_is_not_queued_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="not in list"):
        FifoQueue().remove(sequences(1)[0])
