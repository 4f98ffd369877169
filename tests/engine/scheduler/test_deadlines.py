"""Deadlines: expired requests fail, unreachable deadlines are reported early."""

import random

import pytest

from chairlift.core.errors import DeadlineUnreachable, RequestTimeout
from chairlift.core.request import GenerateRequest
from chairlift.engine.scheduler.deadlines import MAX_REJECTIONS_PER_ESTIMATE, Deadlines
from chairlift.engine.scheduler.step_cost_model import LOWER_BOUND_FACTOR, StepCostModel, StepFeatures
from chairlift.engine.sequence import Sequence, SequenceStatus
from support_engine import answer, ask, make_scheduler, turn


def taught() -> StepCostModel:
    """10 ms a step and 1 ms a prompt token; rows are free."""
    times, rng = StepCostModel(), random.Random(0)
    for _ in range(200):
        prompt = rng.choice([0, 50, 100])
        times.update(StepFeatures(rng.randrange(1, 9), prompt, rng.randrange(1000), 0.0), 10 + prompt)
    return times


def someone(request: GenerateRequest, arrival: int = 0) -> Sequence:
    return Sequence(request, arrival, b"root", 0.0)


def test_what_is_needed_at_least_is_held_against_what_is_left() -> None:
    deadlines = Deadlines(taught(), 50)
    # Two chunks and three more steps: 2 * 10 + 100 + 3 * 10 ms.
    tight, enough = someone(ask("a", 100, 4, timeout=0.10)), someone(ask("b", 100, 4, timeout=0.11))
    error = deadlines.unreachable_error(tight, 0, 0.0)
    assert isinstance(error, DeadlineUnreachable) and error.retryable
    assert (
        error.details["needed"] == pytest.approx(LOWER_BOUND_FACTOR * 0.15, rel=0.05) and error.details["left"] == 0.10
    )
    assert (
        deadlines.unreachable_error(enough, 0, 0.0) is None and deadlines.unreachable_error(enough, 0, 0.02) is not None
    )


def test_what_is_cached_needs_no_time() -> None:
    assert Deadlines(taught(), 50).unreachable_error(someone(ask("a", 100, 4, timeout=0.1)), 64, 0.0) is None


def test_who_may_end_early_needs_one_token_only() -> None:
    deadlines = Deadlines(taught(), 50)
    assert deadlines.unreachable_error(someone(ask("a", 10, 400, timeout=0.1)), 0, 0.0) is not None
    assert deadlines.unreachable_error(someone(ask("a", 10, 400, stop=(3,), timeout=0.1)), 0, 0.0) is None
    assert deadlines.unreachable_error(someone(ask("a", 10, 400, eos_token_ids=(3,), timeout=0.1)), 0, 0.0) is None


def test_without_a_timeout_or_an_estimate_no_deadline_is_unreachable() -> None:
    assert Deadlines(taught(), 50).unreachable_error(someone(ask("a", 10_000, 400)), 0, 0.0) is None
    assert (
        Deadlines(StepCostModel(), 50).unreachable_error(someone(ask("a", 10_000, 400, timeout=0.001)), 0, 0.0) is None
    )


def test_a_waiting_request_fails_once_its_deadline_is_unreachable_and_a_running_one_at_the_deadline() -> None:
    deadlines = Deadlines(taught(), 50)
    waits, runs = someone(ask("w", 10, 11, timeout=1.0)), someone(ask("r", 10, 11, timeout=1.0), 1)
    runs.status = SequenceStatus.RUNNING
    for each in (waits, runs):
        deadlines.watch(each)
    assert list(deadlines.expired(0.92)) == []
    [(sequence, error)] = deadlines.expired(0.94)
    assert sequence is waits and isinstance(error, DeadlineUnreachable)
    assert list(deadlines.expired(0.99)) == []
    [(sequence, error)] = deadlines.expired(1.0)
    assert sequence is runs and isinstance(error, RequestTimeout)


def test_those_that_ended_do_not_pile_up() -> None:
    deadlines = Deadlines(StepCostModel(), 50)
    for number in range(1000):
        one = someone(ask(str(number), 3, timeout=1e6), number)
        deadlines.watch(one)
        one.status = SequenceStatus.FINISHED
    assert len(deadlines._heap) < 200
    assert list(deadlines.expired(2e6)) == []


def test_one_is_let_in_when_the_same_knowledge_has_refused_many() -> None:
    """What was learnt of a machine that was busy then would else be believed for ever."""
    times = taught()
    deadlines = Deadlines(times, 50)
    asked = [
        someone(ask(str(number), 10_000, 4, timeout=0.5), number) for number in range(MAX_REJECTIONS_PER_ESTIMATE + 1)
    ]
    refused = [deadlines.rejection(each, 0, 0.0) is not None for each in asked]
    assert refused == [True] * MAX_REJECTIONS_PER_ESTIMATE + [False]
    assert deadlines.unreachable_error(asked[-1], 0, 0.0) is None, "nor is it dropped later"
    times.update(StepFeatures(0, 50, 0, 0.0), 60.0)
    assert deadlines.rejection(asked[0], 0, 0.0) is not None


def test_who_waits_is_judged_by_what_is_known_now() -> None:
    times = taught()
    deadlines, waits = Deadlines(times, 50), someone(ask("w", 10, 101, timeout=2.0))
    deadlines.watch(waits)
    for _ in range(500):
        times.update(StepFeatures(1, 50, 100, 0.0), 2.0)
        times.update(StepFeatures(1, 0, 100, 0.0), 1.0)
    assert list(deadlines.expired(1.5)) == []
    [(_, error)] = deadlines.expired(1.999)
    assert isinstance(error, DeadlineUnreachable)


# -- in the scheduler ----------------------------------------------------------------------------------------------


def test_the_scheduler_refuses_and_drops_before_the_prompt_is_read() -> None:
    scheduler = make_scheduler(max_running_requests=1, num_blocks=400)
    now = 0.0
    for number in range(40):
        scheduler.add_request(ask(f"teach {number}", [500 + number] * (5 + number % 7 * 10), 3), now)
        for _ in range(3):
            plan = scheduler.schedule(now)
            assert plan is not None
            now += 0.01 + 0.001 * plan.num_tokens
            scheduler.commit(answer(plan), now)
    with pytest.raises(DeadlineUnreachable, match=r"needs at least 0\.07\d* s by itself, 0\.05 s of its timeout are"):
        scheduler.add_request(ask("never", [7] * 100, 1, timeout=0.05), now)
    assert "never" not in scheduler.sequences
    scheduler.add_request(ask("long", [8] * 5, 60), now)
    turn(scheduler, now)
    scheduler.add_request(ask("late", [9] * 100, 1, timeout=0.2), now)
    read = scheduler.counters.prompt_tokens
    scheduler.abort("long", now)
    scheduler.schedule(now + 0.19)
    [output] = scheduler.expire(now + 0.19)
    assert output.request_id == "late" and isinstance(output.error, DeadlineUnreachable)
    assert scheduler.counters.prompt_tokens == read and scheduler.check_integrity() == []
