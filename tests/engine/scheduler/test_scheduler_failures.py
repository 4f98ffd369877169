"""Scheduler: row errors, failed steps and the search for the sequence that makes a step fail."""

from dataclasses import replace

import numpy as np
import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ForwardFailed, NonFiniteLogits
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_result import StepResult
from support_engine import EngineHarness, make_request, make_result, make_scheduler, rows_of, run_step, run_to_end
from support_shares import for_each


def test_a_row_that_fails_ends_alone() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", [1, 2, 3], 9), 0.0)
    scheduler.add_request(make_request("b", [4, 5, 6], 9), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    error = NonFiniteLogits("NaN")
    first, second = scheduler.commit(make_result(plan, faults=[(0, error)]), 0.0)
    assert (first.request_id, first.error, first.token_ids) == ("a", error, ())
    assert (second.request_id, second.error, second.token_ids) == ("b", None, (7,))
    assert scheduler.check_integrity() == []


def test_a_step_taken_back_leaves_no_trace_but_its_number() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 9), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [9, 9], 9), 0.0)
    scheduler.abort("a", 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None and first.released_slots == (0,)
    assert scheduler.rollback(first) == []
    second = scheduler.schedule(0.0)
    assert second is not None and second.step_id == first.step_id + 1
    assert second.released_slots == first.released_slots and second.new_sequences == first.new_sequences
    for name in ("slots", "num_new_tokens", "start_positions", "new_blocks", "input_ids", "sample_rows"):
        assert getattr(second, name).tolist() == getattr(first, name).tolist()


def test_after_a_lack_of_memory_a_sequence_is_added_again_once_its_pending_token_is_known() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", [1, 2], 9), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert scheduler.rollback(second, MemoryError("no memory"), 0.0) == []
    assert scheduler.schedule(0.0) is None
    scheduler.commit(make_result(first, 5), 0.0)
    retry, later = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert retry is not None and retry.new_sequences[0].token_ids == (1, 2, 5) and retry.input_ids.tolist() == [5]
    assert later is not None and later.new_sequences == (), "two steps are in flight again"


def test_after_a_launch_that_failed_the_step_before_it_is_collected_first() -> None:
    """Suspects run alone: steps still in flight are collected before."""
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", [1, 2], 9), 0.0)
    scheduler.add_request(make_request("b", [3, 4], 9), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert scheduler.rollback(second, ValueError("boom"), 0.0) == []
    assert scheduler.schedule(0.0) is None
    scheduler.commit(make_result(first, 5), 0.0)
    first_half = scheduler.schedule(0.0)
    assert first_half is not None and rows_of(scheduler) == {"a": 1} and first_half.input_ids.tolist() == [5]
    assert scheduler.schedule(0.0) is None
    assert scheduler.check_integrity() == []


def test_steps_are_taken_back_newest_first() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 10, 9), 0.0)
    first = scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    assert first is not None
    with pytest.raises(AssertionError, match="newest first"):
        scheduler.rollback(first)


def test_the_culprit_is_found_by_halves() -> None:
    """Four run, "c" fails: {a b c d}, {a b}, {c d}, {c}, then no sequence is a suspect."""
    scheduler = make_scheduler()
    for number, name in enumerate("abcd"):
        scheduler.add_request(make_request(name, [number + 1, 9], 9), 0.0)
    batches, failed = [], []
    while len(batches) < 6:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        batches.append("".join(rows_of(scheduler)))
        if "c" in batches[-1]:
            failed += scheduler.rollback(plan, ValueError("boom"), 0.0)
        else:
            scheduler.commit(make_result(plan), 0.0)
        assert scheduler.check_integrity() == []
    assert batches == ["abcd", "ab", "cd", "c", "d", "abd"]
    [output] = failed
    assert output.request_id == "c" and isinstance(output.error, ForwardFailed) and "boom" in str(output.error)


def test_neighbours_of_a_culprit_get_the_tokens_they_would_get_without_it() -> None:
    for bad in (998, 999):
        fake = FakeConfig(vocab_size=1000, num_blocks=40, block_size=4, poison=998, nan=999)
        harness = EngineHarness(fake, max_batch_tokens=16)
        harness.submit(
            make_request("a", 9, 12),
            make_request("bad", [*range(1, 9), bad], 12),
            make_request("b", [3, 4, 5], 12),
            make_request("c", 6, 12),
        )
        harness.drain()
        harness.check_outputs(no_faults=True)
        assert [name for name, final in harness.finals.items() if final.error] == ["bad"]


def test_suspects_that_left_meanwhile_are_no_suspects() -> None:
    scheduler = make_scheduler()
    for number, name in enumerate("ab"):
        scheduler.add_request(make_request(name, [number + 1, 9], 9), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.rollback(plan, ValueError("boom"), 0.0)
    scheduler.abort("a", 0.0)
    scheduler.abort("b", 0.0)
    assert scheduler.is_idle and scheduler.schedule(0.0) is None
    scheduler.add_request(make_request("c", 3, 1), 0.0)
    run_to_end(scheduler)
    assert scheduler.check_integrity() == []


def test_tokens_after_the_one_that_ends_are_dropped() -> None:
    """A result may bring several tokens a row."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, 9, stop=[5]), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    several = StepResult(plan.step_id, np.array([4, 5, 6], np.int32), np.array([0, 3], np.int32))
    [output] = scheduler.commit(several, 0.0)
    assert output.token_ids == (4, 5) and output.finish_reason is FinishReason.STOP


def test_a_result_of_another_step_is_a_bug_of_ours() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 3, 9), 0.0)
    scheduler.schedule(0.0)
    second = scheduler.schedule(0.0)
    assert second is not None
    with pytest.raises(AssertionError, match="got step 1, expected 0"):
        scheduler.commit(make_result(second), 0.0)


def test_more_launches_than_the_overlap_allows_are_a_bug_of_ours() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, 9), 0.0)
    scheduler.schedule(0.0)
    with pytest.raises(AssertionError, match="more steps in flight"):
        scheduler.schedule(0.0)


# -- layers that keep a state ------------------------------------------------------------------------------------------

STATES = FakeConfig(vocab_size=1000, num_blocks=60, block_size=4, has_state=True, num_state_checkpoints=12)


@for_each("overlap", [False, True])
@for_each("checkpoints", [0, 1, 12])
@for_each("position", [8, 3, 30])
def test_a_culprit_is_found_though_its_neighbours_begin_again(position: int, checkpoints: int, overlap: bool) -> None:
    """A half that failed computes more than one step before it comes to the token at which it failed."""
    fake = replace(STATES, poison=998, num_state_checkpoints=checkpoints)
    harness = EngineHarness(fake, max_batch_tokens=6, overlap=overlap)
    harness.submit(
        make_request("a", 9, 12), make_request("bad", [*range(1, position), 998, 7, 7], 12),
        make_request("b", [3, 4, 5], 12), make_request("c", 23, 12, n=2),
    )  # fmt: skip
    harness.drain(2000)
    harness.check_outputs(no_faults=True)
    assert [name for name, final in harness.finals.items() if final.error] == ["bad"]
    harness.close()


@for_each("overlap", [False, True])
@for_each("checkpoints", [0, 12])
def test_a_request_that_always_lacks_memory_fails_alone(checkpoints: int, overlap: bool) -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        if stage == "launch" and 998 in plan.input_ids:
            raise MemoryError("no memory")

    harness = EngineHarness(replace(STATES, num_state_checkpoints=checkpoints), hook=hook, overlap=overlap)
    harness.submit(make_request("a", 19, 12), make_request("bad", [*range(1, 18), 998, 7], 3), make_request("b", 5, 9))
    harness.drain(3000)
    harness.check_outputs()
    assert {name for name, final in harness.finals.items() if final.error} == {"bad"}
    harness.close()


def test_after_a_failed_step_a_sequence_begins_with_its_last_saved_state() -> None:
    scheduler = make_scheduler(num_state_checkpoints=8)
    scheduler.add_request(make_request("a", 10, 30), 0.0)
    scheduler.add_request(make_request("b", [9] * 3, 30), 0.0)
    for _ in range(7):
        run_step(scheduler)
    plan = scheduler.schedule(0.0)
    assert plan is not None and sorted(plan.start_positions.tolist()) == [9, 16]
    tables = [sequence.table for sequence in scheduler.running.values()]
    scheduler.rollback(plan, ValueError("boom"), 0.0)
    retries = {}
    for _ in range(2):  # in halves
        retry = scheduler.schedule(0.0)
        assert retry is not None
        [slot] = retry.slots.tolist()
        assert [new.slot for new in retry.new_sequences] == [slot] == retry.state_loads[:, 1].tolist()
        retries[slot] = (retry.start_positions.tolist(), retry.input_ids.tolist())
        scheduler.commit(make_result(retry), 0.0)
    a, b = scheduler.sequences["a"], scheduler.sequences["b"]
    assert retries == {a.slot: ([16], a.token_ids[16:17]), b.slot: ([8], b.token_ids[8:10])}
    assert all(table is not None and table.released for table in tables) and scheduler.check_integrity() == []


def test_a_step_before_the_failed_one_still_counts() -> None:
    """Its tokens and its states are committed before its sequences begin again."""
    scheduler = make_scheduler(num_state_checkpoints=8, overlap=True)
    scheduler.add_request(make_request("a", 10, 30), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    scheduler.rollback(second, MemoryError("no memory"), 0.0)
    assert scheduler.schedule(0.0) is None
    scheduler.commit(make_result(first, 5), 0.0)
    assert scheduler.sequences["a"].num_computed_tokens == 10
    retry = scheduler.schedule(0.0)
    assert retry is not None and retry.start_positions.tolist() == [8]
    assert retry.input_ids.tolist() == [9, 10, 5][: len(retry.input_ids)] and len(retry.state_loads) == 1


@pytest.mark.parametrize("caching", [True, False])
def test_without_a_saved_state_a_sequence_begins_at_its_first_token(caching: bool) -> None:
    scheduler = make_scheduler(num_state_checkpoints=0, caching=caching)
    scheduler.add_request(make_request("a", 10, 30), 0.0)
    run_step(scheduler)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.rollback(plan, MemoryError("no memory"), 0.0)
    retry = scheduler.schedule(0.0)
    assert retry is not None and retry.start_positions.tolist() == [0] and len(retry.state_loads) == 0
    assert scheduler.check_integrity() == []
