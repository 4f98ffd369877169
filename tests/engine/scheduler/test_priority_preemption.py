"""PriorityPreemption: victims are preempted only for a head that starts in that step, and as few as possible."""

import random
from dataclasses import replace
from typing import Any

import pytest

from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.scheduler.priority_preemption import RETRY_STEPS, PriorityPreemption
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_cost_model import StepFeatures
from chairlift.engine.sequence import SequenceStatus
from support_engine import make_request, make_result, make_scheduler, rows_of, run_step


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.request_id for sequence in scheduler.running.values()]


# -- only when the head may start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "preempts"),
    [
        ({"batching_policy": "mixed"}, True),
        ({"batching_policy": "static"}, False),
        ({"batching_policy": "fifo", "safety_margin": 0.95}, False),
    ],
)
def test_no_preemption_while_no_waiting_sequence_may_start(options: dict[str, Any], preempts: bool) -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=2, **options)
    for number in (1, 2):
        scheduler.add_request(make_request(f"low {number}", [500 + number] * 20, 30, priority=5), 0.0)
    for _ in range(8):
        run_step(scheduler)
    scheduler.add_request(make_request("urgent", [503] * 8, 4), 0.1)
    for _ in range(4):
        run_step(scheduler, 0.2)
    assert scheduler.counters.preemptions == preempts and ("urgent" in scheduler.sequences) != preempts


def test_a_lowered_limit_preempts_nothing_and_a_head_outranks_one_at_the_limit() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=4)
    for number in range(4):
        scheduler.add_request(make_request(f"low {number}", [500 + number] * 20, 5 + 20 * number, priority=5), 0.0)
    run_step(scheduler)
    scheduler.table.set_limits(replace(scheduler.table.limits, max_running_requests=2))
    scheduler.add_request(make_request("urgent", [510] * 8, 4), 0.1)
    while len(scheduler.running) > 2:
        run_step(scheduler, 0.2)
        assert scheduler.counters.preemptions == 0 and "urgent" not in running(scheduler)
    run_step(scheduler, 0.2)
    assert scheduler.counters.preemptions == 1 and "urgent" in running(scheduler) and len(scheduler.running) == 2


def test_no_preemption_when_the_itl_controller_is_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=2, target_itl_ms=10.0)
    for number in (1, 2):
        scheduler.add_request(make_request(f"low {number}", [500 + number] * 20, 30, priority=5), 0.0)
        run_step(scheduler)
    monkeypatch.setattr(scheduler._step_scheduler._itl_controller, "is_saturated", lambda left_ms: True)
    scheduler.add_request(make_request("urgent", [503] * 8, 4), 0.1)
    run_step(scheduler, 0.2)
    assert scheduler.counters.preemptions == 0 and len(scheduler.waiting) == 1
    monkeypatch.undo()
    run_step(scheduler, 0.2)
    assert scheduler.counters.preemptions == 1 and "urgent" in running(scheduler)


def test_no_preemption_for_an_unreachable_deadline() -> None:
    """The head fails where it is, and sequences are preempted for the next one in the same step."""
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=1)
    scheduler.add_request(make_request("low", [501] * 20, 30, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("late", [503] * 30, 5, priority=0, timeout=0.4), 0.0)
    for _ in range(40):
        scheduler.step_times.update(StepFeatures(0, 30, 0, 450.0), 5000.0)
    scheduler.schedule(0.1)
    assert running(scheduler) == ["low"] and scheduler.counters.preemptions == 0
    assert [output.request_id for output in scheduler.expire(0.1)] == ["late"]
    scheduler.commit(make_result(scheduler.in_flight_steps[-1].plan), 0.1)
    scheduler.add_request(make_request("late again", [503] * 30, 5, priority=0, timeout=30.0), 0.1)
    scheduler.add_request(make_request("urgent", [504] * 3, 5, priority=1), 0.1)
    run_step(scheduler, 20.1)
    assert running(scheduler) == ["urgent"] and [each.request_id for each in scheduler.waiting] == ["low"]


def test_no_preemption_for_a_head_that_still_waits_for_a_prefix() -> None:
    """Also if earlier blocks of that prefix have left the cache, so that no match finds it."""
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=1, max_batch_tokens=4)
    scheduler.add_request(make_request("low", [501] * 20, 9, priority=5), 0.0)
    run_step(scheduler)
    low = scheduler.sequences["low"]
    scheduler.add_request(make_request("urgent", [502] * 9, 9, priority=0), 0.0)
    scheduler.sequences["urgent"].awaited_block_hash = low.block_hashes[-1]
    run_step(scheduler)
    assert scheduler.counters.preemptions == 0
    scheduler.sequences["urgent"].awaited_block_hash = None
    run_step(scheduler)
    assert running(scheduler) == ["urgent"]


def test_no_preemption_for_the_tokens_of_a_step() -> None:
    """Prefilling sequences take the whole step, so the head would not start in it."""
    scheduler = make_scheduler(
        scheduling_policy="priority", max_running_requests=4, max_batch_tokens=16, num_blocks=200
    )
    for number in range(4):
        scheduler.add_request(make_request(f"low {number}", [500 + number] * 12, 9, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("urgent", [510] * 3, 2), 0.0)
    run_step(scheduler)
    assert scheduler.counters.preemptions == 0 and len(scheduler.running) == 4
    while "urgent" in scheduler.sequences:
        run_step(scheduler)
    assert scheduler.counters.preemptions == 1


def test_a_slot_is_freed_where_decoding_takes_every_token() -> None:
    """As many slots as tokens: the victim's token is the head's."""
    scheduler = make_scheduler(scheduling_policy="priority", max_running_requests=3, max_batch_tokens=3)
    for number in range(3):
        scheduler.add_request(make_request(f"low {number}", [500 + number], 9, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("urgent", [510] * 3, 2), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"low 0": 1, "low 1": 1, "urgent": 1} and scheduler.check_integrity() == []


# -- as many as it takes -------------------------------------------------------------------------------------------


def test_blocks_that_two_victims_share_come_free_when_both_leave() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=24)
    scheduler.add_request(make_request("low 1", [*[501] * 32, 1], 20, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("low 2", [*[501] * 32, 2], 20, priority=5), 0.0)
    run_step(scheduler)
    assert scheduler.cache.pool.available == 24 - 8 - 2
    scheduler.add_request(make_request("urgent", [503] * 80, 4, priority=0), 0.0)
    run_step(scheduler)
    assert running(scheduler) == ["urgent"]


def test_blocks_reserved_for_a_preempted_prompt_are_free_for_the_head() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=40, max_batch_tokens=16, caching=False)
    scheduler.add_request(make_request("low", [501] * 100, 9, priority=5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("urgent", [502] * 140, 9, priority=0), 0.0)
    run_step(scheduler)
    assert running(scheduler) == ["urgent"]


def test_no_more_sequences_are_preempted_than_needed() -> None:
    """The least urgent is the first candidate, but its blocks are not needed beside those of the other victim."""
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=32, caching=False)
    for name, tokens, priority in (("small", 2, 9), ("large", 70, 5)):
        scheduler.add_request(make_request(name, [500 + priority] * tokens, 40, priority=priority), 0.0)
        run_step(scheduler)
    run_step(scheduler)
    scheduler.add_request(make_request("urgent", [510] * 60, 4, priority=0), 0.0)
    run_step(scheduler)
    assert running(scheduler) == ["small", "urgent"]


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_head_with_victims_starts_in_that_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    times = 0
    preempt_for_head = PriorityPreemption.preempt_for_head

    def watched(self: PriorityPreemption, *args: Any) -> list[Any]:
        victims = preempt_for_head(self, *args)
        if victims:
            expected.append(next(iter(scheduler.waiting)))
        return victims

    monkeypatch.setattr(PriorityPreemption, "preempt_for_head", watched)
    for _ in range(8):
        scheduler = make_scheduler(
            scheduling_policy="priority", num_blocks=rng.choice([32, 48]), caching=rng.random() < 0.7,
            windows=rng.choice([(None,), (None, 8), (12,)]), overlap=rng.random() < 0.5, protect_after_preemptions=6,
            batching_policy=rng.choice(["mixed", "prefill_first", "decode_first"]), max_batch_tokens=rng.choice([8,
            32, 64]),
            max_running_requests=rng.choice([2, 5, 9]), prefix_wait_steps=rng.choice([0, 2, 256]),
        )  # fmt: skip
        now, plans, number = 0.0, [], 0
        for _ in range(150):
            if len(scheduler.sequences) < 12 and rng.random() < 0.4:
                prompt = [1] * rng.choice([0, 8, 20]) + [rng.randrange(500) for _ in range(rng.randrange(1, 24))]
                scheduler.add_request(
                    make_request(str(number), prompt, rng.randrange(1, 20), priority=rng.randrange(4)), now
                )
                number += 1
            expected: list[Any] = []
            now += 0.01
            if (plan := scheduler.schedule(now)) is not None:
                plans.append(plan)
            assert all(head.status is SequenceStatus.RUNNING for head in expected), (
                "a sequence was preempted and the head did not start"
            )
            times += len(expected)
            if plans and (plan is None or len(plans) == scheduler.config.max_in_flight_steps):
                scheduler.commit(make_result(plans.pop(0)), now)
            assert scheduler.check_integrity() == []
    assert times > 20


# -- what a search costs -------------------------------------------------------------------------------------------


def count_searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the exact searches of the blocks of a running sequence."""
    num_searches = [0]
    num_unshared_tokens = KVCacheManager.num_unshared_tokens

    def watched(self: KVCacheManager, *args: Any) -> int:
        num_searches[0] += 1
        return num_unshared_tokens(self, *args)

    monkeypatch.setattr(KVCacheManager, "num_unshared_tokens", watched)
    return num_searches


def test_a_head_that_cannot_fit_costs_no_close_look(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=64, caching=False)
    scheduler.add_request(make_request("peer", [501] * 100, 90, priority=0), 0.0)
    scheduler.add_request(make_request("low", [502] * 40, 90, priority=5), 0.0)
    for _ in range(4):
        run_step(scheduler)
    scheduler.add_request(make_request("huge", [503] * 200, 4, priority=0), 0.0)
    num_searches = count_searches(monkeypatch)
    for _ in range(3 * RETRY_STEPS // 2):
        run_step(scheduler)
    assert num_searches == [0] and scheduler.counters.preemptions == 0


def test_a_failed_search_is_repeated_after_a_sequence_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared blocks look sufficient in the upper bound."""
    scheduler = make_scheduler(scheduling_policy="priority", num_blocks=96)
    scheduler.add_request(make_request("peer", [501] * 60, 150, priority=0), 0.0)
    scheduler.add_request(make_request("short", [504] * 40, 40, priority=0), 0.0)
    for number in range(4):
        scheduler.add_request(make_request(f"low {number}", [*[502] * 60, number], 150, priority=5), 0.0)
    while scheduler.waiting or any(not each.num_output_tokens for each in scheduler.running.values()):
        run_step(scheduler)
    assert "short" in scheduler.sequences
    scheduler.add_request(make_request("urgent", [503] * 250, 4, priority=0), 0.0)
    num_searches = count_searches(monkeypatch)
    run_step(scheduler)
    run_step(scheduler)
    assert num_searches == [4] and scheduler.counters.preemptions == 0, "once, and not in every step"
    while "short" in scheduler.sequences:
        run_step(scheduler)
    run_step(scheduler)
    assert num_searches[0] > 4 and "urgent" in running(scheduler)
