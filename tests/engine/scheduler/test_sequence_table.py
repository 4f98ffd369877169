"""SequenceTable: keeps places in the waiting queue, frees blocks and slots in one place, once (PITFALLS 5, 11)."""

from dataclasses import replace

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ForwardFailed
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.sequence import SequenceStatus
from chairlift.engine.step_plan import StepPlan
from support_engine import (
    EngineHarness,
    make_request,
    make_result,
    make_scheduler,
    record_released_tables,
    run_step,
    run_to_end,
)


def test_a_victim_keeps_its_place_in_the_queue() -> None:
    """Pitfall 11."""
    scheduler = make_scheduler(max_running_requests=2)
    for number, name in enumerate("abcd"):
        scheduler.add_request(make_request(name, [number + 1, 9], 9), 0.0)
    run_step(scheduler)
    scheduler.table.preempt(scheduler.sequences["b"], 0.0)
    scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    assert [sequence.request.request_id for sequence in scheduler.waiting] == ["a", "b", "c", "d"]
    scheduler.schedule(0.0)
    assert list(scheduler.running) == [0, 1]


def test_abort_while_waiting_releases_nothing() -> None:
    """Pitfall 5."""
    scheduler = make_scheduler()
    tables = record_released_tables(scheduler)
    scheduler.add_request(make_request("a", 3), 0.0)
    output = scheduler.abort("a", 0.0)
    assert output is not None and output.finish_reason is FinishReason.ABORT
    assert tables == [] and scheduler.is_idle and scheduler.waiting_tokens == 0 and scheduler.schedule(0.0) is None


def test_abort_in_the_middle_of_a_chunked_prompt_releases_once() -> None:
    """Pitfall 5."""
    scheduler = make_scheduler(max_chunk_tokens=4)
    tables = record_released_tables(scheduler)
    scheduler.add_request(make_request("a", 10), 0.0)
    run_step(scheduler)
    scheduler.abort("a", 0.0)
    assert len(tables) == 1 and scheduler.cache.counts().held == 0 and scheduler.check_integrity() == []
    assert not scheduler.cache._pending


def test_abort_in_flight_releases_once_and_drops_the_token() -> None:
    """Pitfall 5."""
    scheduler = make_scheduler()
    tables = record_released_tables(scheduler)
    scheduler.add_request(make_request("a", 10), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.abort("a", 0.0)
    assert not scheduler.is_idle
    assert scheduler.commit(make_result(plan), 0.0) == []
    assert len(tables) == 1 and scheduler.is_idle and scheduler.check_integrity() == []


def test_abort_after_the_finish_does_nothing() -> None:
    """Pitfall 5."""
    scheduler = make_scheduler()
    tables = record_released_tables(scheduler)
    scheduler.add_request(make_request("a", 10, 1), 0.0)
    run_to_end(scheduler)
    assert scheduler.abort("a", 0.0) is None and scheduler.abort("never", 0.0) is None
    assert len(tables) == 1 and scheduler.check_integrity() == []


def test_an_abort_frees_the_slot_for_the_next_one_in_the_same_plan() -> None:
    scheduler = make_scheduler(max_running_requests=1)
    scheduler.add_request(make_request("a", 10), 0.0)
    scheduler.add_request(make_request("b", 5), 0.0)
    run_step(scheduler)
    scheduler.abort("a", 0.0)
    plan, _ = run_step(scheduler)
    assert plan.released_slots == (0,) and [card.slot for card in plan.new_sequences] == [0]


def test_fail_all_ends_every_choice_once() -> None:
    scheduler = make_scheduler(max_running_requests=2)
    scheduler.add_request(make_request("a", 3, n=2), 0.0)
    scheduler.add_request(make_request("b", 3), 0.0)
    run_step(scheduler)
    outputs = scheduler.table.fail_all(ForwardFailed("all of them"), 0.0)
    assert [(each.request_id, each.is_final) for each in outputs] == [("a", True), ("b", True)]
    assert scheduler.is_idle and scheduler.check_integrity() == [] and scheduler.cache.counts().held == 0


def two_running() -> Scheduler:
    scheduler = make_scheduler(max_running_requests=4)
    scheduler.add_request(make_request("a", 10, 9), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", 3, 9), 0.0)
    assert scheduler.check_integrity() == []
    return scheduler


def test_check_integrity_finds_a_lost_slot() -> None:
    scheduler = two_running()
    scheduler.table._free_slots.pop()
    assert scheduler.check_integrity()[0].startswith("each slot must be free or in use once")


def test_check_integrity_finds_a_request_in_no_list() -> None:
    scheduler = two_running()
    scheduler.waiting.remove(scheduler.sequences["b"])
    assert scheduler.check_integrity() == ["0 waiting, 1 running, 0 deferred of 2 open"]


def test_check_integrity_finds_counters_out_of_order() -> None:
    scheduler = two_running()
    scheduler.sequences["a"].num_computed_tokens = 12
    assert scheduler.check_integrity() == ["a: counters out of order, not 0 <= 12 <= 10 <= 11"]


def test_check_integrity_finds_a_wrong_status() -> None:
    scheduler = two_running()
    scheduler.sequences["a"].status = SequenceStatus.WAITING
    assert any(line.startswith("a: WAITING with table") for line in scheduler.check_integrity())


def test_check_integrity_finds_tokens_without_blocks() -> None:
    scheduler = two_running()
    sequence = scheduler.sequences["a"]
    assert sequence.table is not None
    sequence.table.capacity = 4
    assert scheduler.check_integrity() == ["a: 10 tokens scheduled into 4"]


def set_limits(scheduler: Scheduler, **limits: int) -> None:
    scheduler.table.set_limits(replace(scheduler.table.limits, **limits))


def test_a_lowered_running_limit_holds_for_new_requests_only() -> None:
    harness = EngineHarness(FakeConfig(), max_running_requests=4)
    harness.submit(*(make_request(str(number), [number + 1], 6) for number in range(6)))
    harness.step()
    assert len(harness.scheduler.running) == 4
    set_limits(harness.scheduler, max_running_requests=1, max_batch_tokens=1)
    assert harness.scheduler.table.batch_token_limit == 4, "each running sequence may have a token"
    most = 4
    while not harness.loop.is_idle:
        running = len(harness.scheduler.running)
        harness.step()
        assert len(harness.scheduler.running) <= max(1, running)
        most = min(most, len(harness.scheduler.running) or most)
    assert most == 1
    harness.check_outputs(no_faults=True)


def test_a_raised_running_limit_lets_more_start() -> None:
    harness = EngineHarness(FakeConfig(), max_running_requests=4)
    set_limits(harness.scheduler, max_running_requests=1)
    harness.submit(*(make_request(str(number), [number + 1], 6) for number in range(4)))
    harness.step()
    assert len(harness.scheduler.running) == 1
    set_limits(harness.scheduler, max_running_requests=3)
    harness.step()
    assert len(harness.scheduler.running) == 3
    harness.drain()


def test_a_lowered_limit_of_tokens_makes_smaller_steps() -> None:
    harness = EngineHarness(FakeConfig())
    set_limits(harness.scheduler, max_batch_tokens=8)
    harness.submit(make_request("a", list(range(20)), 2))
    counts = []
    while not harness.loop.is_idle:
        before = harness.scheduler.counters.scheduled_tokens
        harness.step()
        counts.append(harness.scheduler.counters.scheduled_tokens - before)
    assert counts == [8, 8, 4, 1]


def test_a_running_sequence_begins_again_with_its_cached_prefix_and_keeps_slot_and_place() -> None:
    scheduler = make_scheduler(num_state_checkpoints=8)
    for name in "ab":
        scheduler.add_request(make_request(name, [ord(name)] * 10, 9), 0.0)
    for _ in range(4):
        run_step(scheduler)
    first = scheduler.sequences["a"]
    table, slot = first.table, first.slot
    scheduler.table.restart(first)
    assert first.table is not table and first.slot == slot and next(iter(scheduler.running.values())) is first
    assert first.num_computed_tokens == first.num_scheduled_tokens == 12 and first.fast_path_end == 0
    assert first.table is not None and first.table.capacity == 12 and scheduler.check_integrity() == []


def test_the_mean_of_a_prompt_begins_again_with_its_first_token() -> None:
    fake = FakeConfig(block_size=4, has_state=True, num_state_checkpoints=8)
    failing = {3}

    def hook(plan: StepPlan, stage: str) -> None:
        if stage == "collect" and plan.step_id in failing:
            failing.remove(plan.step_id)
            raise MemoryError("no memory")

    harness = EngineHarness(fake, hook=hook, max_batch_tokens=8)
    harness.submit(make_request("a", 40, 1, pooling="last"), make_request("b", 30, 1, pooling="mean"))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert not failing
