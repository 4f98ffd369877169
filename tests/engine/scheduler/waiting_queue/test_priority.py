"""PriorityQueue: urgent sequences first, but waiting raises the priority."""

import random

from chairlift.engine.scheduler.waiting_queue.priority import PriorityQueue
from chairlift.engine.sequence import Sequence
from support_engine import make_request, make_scheduler, rows_of, run_step


def make_sequence(arrival: int, priority: int, at: float = 0.0) -> Sequence:
    return Sequence(make_request(str(arrival), 3, priority=priority), arrival, b"root", at)


def order(queue: PriorityQueue) -> list[int]:
    return [sequence.arrival_index for sequence in queue]


def test_the_more_urgent_are_first_and_equals_in_order_of_arrival() -> None:
    queue = PriorityQueue(ageing=10)
    for arrival, priority in enumerate([1, 0, 1, -1, 0]):
        queue.add(make_sequence(arrival, priority))
    assert order(queue) == [3, 1, 4, 0, 2]


def test_waiting_is_worth_priority() -> None:
    """The documented bound: a request of priority q that comes (p - q) * ageing seconds after one of p is behind it."""
    queue = PriorityQueue(ageing=10)
    queue.add(make_sequence(0, priority=3, at=0.0))
    queue.add(make_sequence(1, priority=0, at=29.9))
    queue.add(make_sequence(2, priority=0, at=30.1))
    assert order(queue) == [1, 0, 2]


def test_whatever_comes_and_goes_the_order_is_that_of_the_ranks() -> None:
    rng, queue = random.Random(5), PriorityQueue(ageing=2)
    inside: list[Sequence] = []
    outside = [make_sequence(arrival, rng.randrange(4), rng.random() * 5) for arrival in range(40)]
    for _ in range(600):
        if outside and (not inside or rng.random() < 0.5):
            chosen = outside.pop(rng.randrange(len(outside)))
            inside.append(chosen)
            queue.add(chosen)
        else:
            chosen = inside.pop(rng.randrange(len(inside)))
            outside.append(chosen)
            queue.remove(chosen)
        expected = sorted(inside, key=lambda each: (queue.rank(each), each.arrival_index))
        assert order(queue) == [each.arrival_index for each in expected] and len(queue) == len(inside)


def test_only_a_sequence_ahead_in_both_ways_preempts() -> None:
    queue = PriorityQueue(ageing=10)
    urgent, old, young = make_sequence(0, 0, at=50.0), make_sequence(1, 3, at=0.0), make_sequence(2, 3, at=49.0)
    assert queue.outranks(urgent, young) and not queue.outranks(urgent, old)
    assert not queue.outranks(young, urgent) and not queue.outranks(young, make_sequence(3, 3, at=60.0))


def test_a_late_request_starts_first_only_while_the_other_does_not_fit() -> None:
    """The queue keeps the documented bound; the step scheduler keeps max_bypass."""
    for max_bypass, first in ((1, "late"), (0, "early")):
        scheduler = make_scheduler(scheduling_policy="priority", priority_ageing=1.0, num_blocks=20, caching=False,
                                   max_bypass=max_bypass)  # fmt: skip
        scheduler.add_request(make_request("running", [501] * 40, 20, priority=-3), 0.0)
        run_step(scheduler)
        scheduler.add_request(make_request("early", [502] * 60, 4, priority=1), 0.0)
        for name in ("late", "later"):
            scheduler.add_request(make_request(name, [503] * 4, 2, priority=0), 100.0)
        assert [each.request_id for each in scheduler.waiting] == ["early", "late", "later"]
        started: list[str] = []
        while scheduler.sequences:
            plan, _ = run_step(scheduler, 100.0)
            started += (
                [row.request_id for row in scheduler.running.values() if row.request_id not in started] if plan else []
            )
        assert started[:2] == ["running", first] and started.index("early") < started.index("later")


# -- in the scheduler ----------------------------------------------------------------------------------------------


def test_an_urgent_request_takes_the_slot_of_the_least_urgent_one() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=2)
    for name, priority in (("idle", 9), ("less", 5), ("urgent", 0)):
        scheduler.add_request(make_request(name, [500 + priority] * 5, 9, priority=priority), 0.0)
        if name != "urgent":
            run_step(scheduler)
    scheduler.schedule(0.0)
    assert set(rows_of(scheduler)) == {"less", "urgent"} and scheduler.counters.preemptions == 1
    assert [each.request_id for each in scheduler.waiting] == ["idle"] and scheduler.check_integrity() == []


def test_an_urgent_request_takes_the_blocks_of_others_only_if_that_is_enough() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=20, block_size=4, caching=False)
    scheduler.add_request(make_request("peer", [501] * 32, 9, priority=0), 0.0)
    scheduler.add_request(make_request("low", [502] * 8, 9, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("huge", [503] * 60, 9, priority=0), 0.0)
    run_step(scheduler)
    assert scheduler.counters.preemptions == 0, "it would not fit even then"
    scheduler.abort("huge", 0.0)
    scheduler.add_request(make_request("fits", [504] * 20, 9, priority=0), 0.0)
    run_step(scheduler)
    assert set(scheduler.sequences) == {"peer", "low", "fits"} and scheduler.counters.preemptions == 1
    assert {each.request_id for each in scheduler.running.values()} == {"peer", "fits"}


def test_no_sequence_is_preempted_more_than_protect_after_times() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=1, protect_after_preemptions=2)
    scheduler.add_request(make_request("low", [501] * 5, 30, priority=5), 0.0)
    run_step(scheduler)
    for number in range(4):
        scheduler.add_request(make_request(f"urgent {number}", [600 + number] * 3, 2, priority=0), 0.0)
        for _ in range(3):
            run_step(scheduler)
    assert scheduler.sequences["low"].num_preemptions == 2


def test_when_blocks_run_out_the_least_urgent_leaves_first() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", caching=False)
    scheduler.add_request(make_request("urgent", [501] * 3, 9, priority=0), 0.0)
    scheduler.add_request(make_request("low", [502] * 16, 9, priority=5), 0.0)
    run_step(scheduler)
    assert scheduler._step_scheduler._running_scheduler._select_victim().request_id == "low", "although it loses more"
