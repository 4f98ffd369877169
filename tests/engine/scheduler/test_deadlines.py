"""Deadlines: expired requests fail, unreachable deadlines are reported early."""

import random

import pytest

from chairlift.core.errors import DeadlineUnreachable, RequestTimeout, TimeoutTooShort
from chairlift.core.request import GenerateRequest
from chairlift.engine.scheduler.deadlines import MAX_REJECTIONS_PER_ESTIMATE, Deadlines
from chairlift.engine.scheduler.step_cost_model import LOWER_BOUND_FACTOR, StepCostModel, StepFeatures
from chairlift.engine.sequence import Sequence, SequenceStatus
from support_engine import make_request, make_result, make_scheduler, run_step


def trained_model() -> StepCostModel:
    """Train a model on steps that cost 10 ms and 1 ms a prompt token; rows cost nothing."""
    model, rng = StepCostModel(), random.Random(0)
    for _ in range(200):
        prompt = rng.choice([0, 50, 100])
        model.update(StepFeatures(rng.randrange(1, 9), prompt, rng.randrange(1000), 0.0), 10 + prompt)
    return model


def make_sequence(request: GenerateRequest, arrival: int = 0) -> Sequence:
    return Sequence(request, arrival, b"root", 0.0)


def test_what_is_needed_at_least_is_held_against_what_is_left() -> None:
    deadlines = Deadlines(trained_model(), 50)
    # Two chunks and three more steps: 2 * 10 + 100 + 3 * 10 ms.
    tight, enough = (
        make_sequence(make_request("a", 100, 4, timeout=0.10)),
        make_sequence(make_request("b", 100, 4, timeout=0.11)),
    )
    error = deadlines.unreachable_error(tight, 0, 0.0)
    assert isinstance(error, TimeoutTooShort) and not error.retryable and error.details["param"] == "timeout"
    assert (
        error.details["needed"] == pytest.approx(LOWER_BOUND_FACTOR * 0.15, rel=0.05)
        and error.details["timeout"] == 0.10
    )
    assert deadlines.unreachable_error(enough, 0, 0.0) is None
    error = deadlines.unreachable_error(enough, 0, 0.02)
    assert isinstance(error, DeadlineUnreachable) and error.retryable, "without the wait it could be met"
    assert error.details["left"] == pytest.approx(0.09)


def test_a_deadline_that_was_lost_in_the_queue_may_be_retried_and_a_timeout_below_the_lower_bound_may_not() -> None:
    deadlines = Deadlines(trained_model(), 50)
    lost = make_sequence(make_request("lost", 10, 11, timeout=1.0))
    never = make_sequence(make_request("never", 10, 400, timeout=1.0), 1)
    for each in (lost, never):
        deadlines.watch(each)
    errors = {each.request.request_id: type(error) for each, error in deadlines.expired(0.95)}
    assert errors == {"lost": DeadlineUnreachable, "never": TimeoutTooShort}


def test_what_is_cached_needs_no_time() -> None:
    assert (
        Deadlines(trained_model(), 50).unreachable_error(make_sequence(make_request("a", 100, 4, timeout=0.1)), 64, 0.0)
        is None
    )


def test_a_request_that_may_end_early_needs_one_token_only() -> None:
    deadlines = Deadlines(trained_model(), 50)
    assert deadlines.unreachable_error(make_sequence(make_request("a", 10, 400, timeout=0.1)), 0, 0.0) is not None
    assert (
        deadlines.unreachable_error(make_sequence(make_request("a", 10, 400, stop=(3,), timeout=0.1)), 0, 0.0) is None
    )
    assert (
        deadlines.unreachable_error(make_sequence(make_request("a", 10, 400, eos_token_ids=(3,), timeout=0.1)), 0, 0.0)
        is None
    )


def test_without_a_timeout_or_an_estimate_no_deadline_is_unreachable() -> None:
    assert (
        Deadlines(trained_model(), 50).unreachable_error(make_sequence(make_request("a", 10_000, 400)), 0, 0.0) is None
    )
    assert (
        Deadlines(StepCostModel(), 50).unreachable_error(
            make_sequence(make_request("a", 10_000, 400, timeout=0.001)), 0, 0.0
        )
        is None
    )


def test_a_waiting_request_fails_once_its_deadline_is_unreachable_and_a_running_one_at_the_deadline() -> None:
    deadlines = Deadlines(trained_model(), 50)
    waits, runs = (
        make_sequence(make_request("w", 10, 11, timeout=1.0)),
        make_sequence(make_request("r", 10, 11, timeout=1.0), 1),
    )
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
        features = make_sequence(make_request(str(number), 3, timeout=1e6), number)
        deadlines.watch(features)
        features.status = SequenceStatus.FINISHED
    assert len(deadlines._heap) < 200
    assert list(deadlines.expired(2e6)) == []


def test_one_request_is_accepted_after_many_rejections_by_one_estimate() -> None:
    """Otherwise an estimate from a busy time would hold for ever."""
    model = trained_model()
    deadlines = Deadlines(model, 50)
    requests = [
        make_sequence(make_request(str(number), 10_000, 4, timeout=0.5), number)
        for number in range(MAX_REJECTIONS_PER_ESTIMATE + 1)
    ]
    rejected = [deadlines.rejection(each, 0, 0.0) is not None for each in requests]
    assert rejected == [True] * MAX_REJECTIONS_PER_ESTIMATE + [False]
    assert deadlines.unreachable_error(requests[-1], 0, 0.0) is None, "it is not dropped later, either"
    model.update(StepFeatures(0, 50, 0, 0.0), 60.0)
    assert deadlines.rejection(requests[0], 0, 0.0) is not None


def test_a_waiting_request_is_judged_by_the_latest_estimate() -> None:
    model = trained_model()
    deadlines, waits = Deadlines(model, 50), make_sequence(make_request("w", 10, 101, timeout=2.0))
    deadlines.watch(waits)
    for _ in range(500):
        model.update(StepFeatures(1, 50, 100, 0.0), 2.0)
        model.update(StepFeatures(1, 0, 100, 0.0), 1.0)
    assert list(deadlines.expired(1.5)) == []
    [(_, error)] = deadlines.expired(1.999)
    assert isinstance(error, DeadlineUnreachable)


# -- in the scheduler ----------------------------------------------------------------------------------------------


def test_the_scheduler_rejects_and_drops_before_the_prefill() -> None:
    scheduler = make_scheduler(max_running_requests=1, num_blocks=400)
    now = 0.0
    for number in range(40):
        scheduler.add_request(make_request(f"teach {number}", [500 + number] * (5 + number % 7 * 10), 3), now)
        for _ in range(3):
            plan = scheduler.schedule(now)
            assert plan is not None
            now += 0.01 + 0.001 * plan.num_tokens
            scheduler.commit(make_result(plan), now)
    with pytest.raises(TimeoutTooShort, match=r"timeout is 0\.05 s, but the request needs at least 0\.07\d* s"):
        scheduler.add_request(make_request("never", [7] * 100, 1, timeout=0.05), now)
    assert "never" not in scheduler.sequences
    scheduler.add_request(make_request("long", [8] * 5, 60), now)
    run_step(scheduler, now)
    scheduler.add_request(make_request("late", [9] * 100, 1, timeout=0.2), now)
    read = scheduler.counters.prompt_tokens
    scheduler.abort("long", now)
    scheduler.schedule(now + 0.19)
    [output] = scheduler.expire(now + 0.19)
    assert output.request_id == "late" and isinstance(output.error, DeadlineUnreachable)
    assert scheduler.counters.prompt_tokens == read and scheduler.check_integrity() == []
