"""The fifo line: order of arrival for life, whatever comes and goes."""

import random

import pytest

from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence
from support_engine import ask


def sequences(count: int) -> list[Sequence]:
    return [Sequence(ask(str(number), 3), number, b"root", 0.0) for number in range(count)]


def order(line: FifoQueue) -> list[int]:
    return [sequence.arrival_index for sequence in line]


def test_a_victim_returns_to_its_place() -> None:
    """Pitfall 11: it does not lose its place among equals."""
    line, all_of_them = FifoQueue(), sequences(5)
    for sequence in all_of_them:
        line.add(sequence)
    for arrival in (1, 0, 3):
        line.remove(all_of_them[arrival])
    assert order(line) == [2, 4]
    for arrival in (3, 0, 1):
        line.add(all_of_them[arrival])
    assert order(line) == [0, 1, 2, 3, 4] and len(line) == 5


def test_any_coming_and_going_keeps_the_order_of_arrival() -> None:
    rng, line, inside, outside = random.Random(3), FifoQueue(), list[Sequence](), sequences(40)
    for _ in range(500):
        if outside and rng.random() < 0.5:
            # New ones come in order; those that were in already may come back at any time.
            back = [sequence for sequence in outside if sequence.epoch]
            fresh = [sequence for sequence in outside if not sequence.epoch][:1]
            chosen = rng.choice(back + fresh)
            chosen.epoch += 1
            outside.remove(chosen)
            inside.append(chosen)
            line.add(chosen)
        elif inside:
            chosen = rng.choice(inside)
            inside.remove(chosen)
            outside.append(chosen)
            line.remove(chosen)
        assert order(line) == sorted(sequence.arrival_index for sequence in inside) and len(line) == len(inside)


def test_who_is_not_in_line_cannot_leave_it() -> None:
    with pytest.raises(ValueError, match="not in list"):
        FifoQueue().remove(sequences(1)[0])
