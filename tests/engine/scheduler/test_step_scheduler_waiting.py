"""StepScheduler: the order of the waiting queue, waits for a prefix, and which sequence is preempted."""

import random
from typing import Any

import pytest

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.free_block_list import BlockId
from chairlift.engine.queue_wait_by_reason import WaitReason
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_scheduler import MAX_SKIPPED_WAITING
from support_engine import EngineHarness, make_request, make_result, make_scheduler, rows_of, run_step

# -- the order of the waiting queue ----------------------------------------------------------------------------------


def waiting(scheduler: Scheduler) -> list[str]:
    return [sequence.request.request_id for sequence in scheduler.waiting]


def make_crowded_scheduler(max_bypass: int, **options: Any) -> Scheduler:
    """Make a scheduler: a sequence holds a third of the pool, and the head of the queue needs nearly all of it."""
    scheduler = make_scheduler(num_blocks=20, block_size=4, max_bypass=max_bypass, **options)
    scheduler.add_request(make_request("running", [500] * 24, 50), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("head", [501] * 60, 2), 0.0)
    for number in range(6):
        scheduler.add_request(make_request(f"small {number}", [510 + number], 1), 0.0)
    return scheduler


@pytest.mark.parametrize("max_bypass", [0, 1, 3])
def test_a_head_that_does_not_fit_is_passed_max_bypass_times_and_then_never(max_bypass: int) -> None:
    """Pitfalls 8 and 10: no starvation either way."""
    scheduler = make_crowded_scheduler(max_bypass)
    started: list[str] = []
    for _ in range(20):
        _, outputs = run_step(scheduler)
        started += [output.request_id for output in outputs if output.request_id != "running"]
    assert started == [f"small {number}" for number in range(max_bypass)]
    assert waiting(scheduler)[0] == "head" and scheduler.sequences["head"].num_bypasses == max_bypass
    assert scheduler.wait_clock.reason is WaitReason.BLOCKS
    scheduler.abort("running", 0.0)
    run_step(scheduler)
    assert "head" not in waiting(scheduler)


def test_to_start_the_whole_input_must_fit_and_not_only_its_first_chunk() -> None:
    """Pitfall 7."""
    scheduler = make_crowded_scheduler(0, max_chunk_tokens=4)
    for _ in range(10):
        run_step(scheduler)
    assert waiting(scheduler)[0] == "head" and scheduler.counters.preemptions == 0


def test_blocks_reserved_for_one_prompt_are_not_given_to_the_next() -> None:
    """Pitfall 7: two prompts that fit one at a time run one after the other."""
    scheduler = make_scheduler(num_blocks=20, block_size=4, max_chunk_tokens=4)
    scheduler.add_request(make_request("a", [501] * 50, 1), 0.0)
    scheduler.add_request(make_request("b", [502] * 50, 1), 0.0)
    run_step(scheduler)
    assert waiting(scheduler) == ["b"]
    while scheduler.sequences:
        run_step(scheduler)
    assert scheduler.counters.preemptions == 0 and scheduler.counters.scheduled_tokens == 100


@pytest.mark.share(2)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 37])
def test_recomputing_near_a_full_pool_is_bounded(block_size: int) -> None:
    """Pitfall 7: with twice the blocks of the largest request, less than a third of all work is recomputed."""
    fake = FakeConfig(vocab_size=500, max_model_len=256, num_blocks=2 * -(-200 // block_size), block_size=block_size)
    harness = EngineHarness(fake, max_batch_tokens=64, max_running_requests=16)
    rng = random.Random(1)
    for number in range(40):
        prompt = [rng.randrange(500) for _ in range(rng.randrange(10, 60))]
        harness.submit(make_request(str(number), prompt, rng.randrange(20, 120)))
    harness.drain()
    harness.check_outputs(no_faults=True)
    useful = sum(
        len(request.prompt_token_ids) + len(harness.tokens[name]) - 1 for name, request in harness.requests.items()
    )
    num_recomputed = harness.scheduler.counters.scheduled_tokens - useful
    assert harness.scheduler.counters.preemptions > 0, "the pool was never full"
    assert num_recomputed < useful / 3, f"{num_recomputed} tokens recomputed of {useful}"


def test_the_search_of_the_waiting_queue_is_bounded() -> None:
    scheduler = make_crowded_scheduler(10**6)
    for number in range(MAX_SKIPPED_WAITING + 50):
        scheduler.add_request(make_request(f"large {number}", [700 + number] * 60, 2), 0.0)
    scheduler.add_request(make_request("far behind", [9], 1), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert "far behind" in waiting(scheduler)


# -- waits for a prefix ----------------------------------------------------------------------------------------------


def test_patience_for_a_prefix_is_bounded() -> None:
    scheduler = make_scheduler(max_chunk_tokens=1, prefix_wait_steps=3, max_batch_tokens=8)
    scheduler.add_request(make_request("a", 20, 1), 0.0)
    scheduler.add_request(make_request("b", 20, 1), 0.0)
    steps = []
    for _ in range(6):
        scheduler.schedule(0.0)
        steps.append(list(rows_of(scheduler)))
        scheduler.commit(make_result(scheduler.in_flight_steps[-1].plan), 0.0)
    assert steps == [["a"]] * 3 + [["a", "b"]] * 3


def test_prefix_waits_are_counted_anew_for_each_epoch() -> None:
    scheduler = make_scheduler(max_chunk_tokens=1, prefix_wait_steps=3)
    scheduler.add_request(make_request("a", 20, 1), 0.0)
    scheduler.add_request(make_request("b", 20, 1), 0.0)
    for _ in range(4):
        run_step(scheduler)
    scheduler.table.preempt(scheduler.sequences["b"], 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"a": 1}


@pytest.mark.parametrize("way", ["abort", "fail", "preempt"])
def test_a_prefix_whose_owner_leaves_is_waited_for_no_longer(way: str) -> None:
    scheduler = make_scheduler(max_chunk_tokens=4)
    scheduler.add_request(make_request("a", 20, 1), 0.0)
    scheduler.add_request(make_request("b", 20, 1), 0.0)
    run_step(scheduler)
    if way == "abort":
        scheduler.abort("a", 0.0)
    elif way == "preempt":
        scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    else:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        scheduler.rollback(plan, ValueError("boom"), 0.0)
    for _ in range(20):
        if scheduler.sequences:
            run_step(scheduler)
    assert not scheduler.sequences and scheduler.check_integrity() == []


def test_two_that_wait_for_each_others_prefix_do_not_wait_for_ever() -> None:
    """Many equal prefixes, one owner in each step: no deadlock, and the prefix is computed once."""
    scheduler = make_scheduler(num_blocks=200, max_chunk_tokens=4, max_batch_tokens=32)
    for number in range(10):
        scheduler.add_request(make_request(str(number), [*range(1, 21), 100 + number], 2), 0.0)
    steps = 0
    while scheduler.sequences:
        run_step(scheduler)
        steps += 1
    assert scheduler.counters.scheduled_tokens == 20 + 10 * 2 and steps < 20


# -- victims ---------------------------------------------------------------------------------------------------------


def test_the_victim_is_the_sequence_that_loses_the_least_computed_work() -> None:
    """Pitfall 7."""
    scheduler = make_scheduler(num_blocks=12, block_size=4, caching=False)
    scheduler.add_request(make_request("long", [501] * 16, 30), 0.0)
    scheduler.add_request(make_request("short", [502] * 3, 40), 0.0)
    run_step(scheduler)
    assert waiting(scheduler) == []
    while not scheduler.counters.preemptions:
        run_step(scheduler)
    assert waiting(scheduler) == ["short"]


def test_work_that_another_holds_too_is_not_lost() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4)
    prefix = [501] * 16
    scheduler.add_request(make_request("owner", [*prefix, 1], 9), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("shares", [*prefix, 2], 9), 0.0)
    scheduler.add_request(make_request("alone", [503] * 4, 9), 0.0)
    run_step(scheduler)
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "shares"


def test_a_sequence_that_was_preempted_often_is_spared() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4, caching=False, protect_after_preemptions=2)
    scheduler.add_request(make_request("long", [501] * 16, 9), 0.0)
    scheduler.add_request(make_request("short", [502] * 3, 9), 0.0)
    run_step(scheduler)
    scheduler.sequences["short"].num_preemptions = 2
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "long"
    scheduler.sequences["long"].num_preemptions = 2
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "short", (
        "of the spared sequences, the last to arrive"
    )


def test_a_victim_gives_back_what_it_got_in_the_same_step() -> None:
    """A sequence that already has its token in the step is preempted; budgets add up again."""
    scheduler = make_scheduler(num_blocks=6, block_size=4, caching=False, max_batch_tokens=8)
    scheduler.add_request(make_request("a", [501], 20), 0.0)
    scheduler.add_request(make_request("b", [502], 20), 0.0)
    steps = 0
    while scheduler.sequences:
        plan, _ = run_step(scheduler)
        steps += 1
        held = [block for sequence in scheduler.running.values() for block in (sequence.table or ()).groups[0]]
        assert len(held) == len(set(held)) and plan.num_rows <= 2
    assert scheduler.counters.preemptions and steps < 60


def test_a_request_that_does_not_fit_alone_fails_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """This cannot happen while admission is right; if it does, one request fails and the engine goes on."""
    scheduler = make_scheduler(num_blocks=8, block_size=4)
    scheduler.add_request(make_request("a", [501] * 4, 20), 0.0)
    run_step(scheduler)

    def fail(count: int) -> list[BlockId]:
        raise OutOfBlocks(free=0, total=8, needed=count)

    monkeypatch.setattr(scheduler.cache.pool, "allocate", fail)
    assert scheduler.schedule(0.0) is None
    monkeypatch.undo()
    assert not scheduler.is_idle, "the final output is not delivered yet"
    [output] = scheduler.expire(0.0)
    assert isinstance(output.error, OutOfBlocks) and output.error.details["total"] == 8
    assert scheduler.is_idle


def test_a_request_waits_for_the_state_that_another_will_save_and_no_longer() -> None:
    scheduler = make_scheduler(num_state_checkpoints=8, max_chunk_tokens=8)
    scheduler.add_request(make_request("a", 40, 3, prefix_boundaries=(17,)), 0.0)
    scheduler.add_request(make_request("b", [*range(1, 18), *[99] * 9], 3), 0.0)
    scheduler.add_request(make_request("other", [*range(1, 10), 77], 3), 0.0)
    starts = []
    for _ in range(4):
        plan, _ = run_step(scheduler)
        starts.append(sorted(plan.start_positions.tolist()))
    # "other" would share two blocks, but no state will be saved behind them until it starts itself.
    assert starts[0] == [0, 0] and scheduler.sequences["b"].num_prefix_waits == 2
    assert any(16 in each for each in starts) and scheduler.sequences["b"].cached_tokens == 16
