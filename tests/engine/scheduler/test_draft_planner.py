"""DraftPlanner: which sequences get drafts, how many, and what a step with drafts confirms and takes back."""

from collections.abc import Sequence as Items

import numpy as np
import pytest

from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_cost_model import StepFeatures
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import MIN_STEP_SAMPLES, StepPlan
from chairlift.engine.step_result import StepResult
from support_engine import make_request, make_result, make_scheduler, run_step
from support_grammars import EOS, VOCAB_SIZE, grammar_of
from support_shares import for_each

LONG = list(range(20, 60))


class FixedDrafter:
    """Proposes the same tokens for every sequence."""

    name = "fixed"

    def __init__(self, tokens: Items[int]) -> None:
        self.tokens = tokens
        self.limits: list[int] = []

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        self.limits.append(limit)
        return self.tokens


def drafting(tokens: Items[int] = LONG, max_drafts: int = 8, **options: object) -> tuple[Scheduler, FixedDrafter]:
    """Return a scheduler with a request that has sampled its first token, 7, and the drafter of its next step."""
    scheduler = make_scheduler(**options)  # type: ignore[arg-type]
    scheduler.add_request(make_request("a", 3, 30), 0.0)
    run_step(scheduler)
    drafter = FixedDrafter(tokens)
    scheduler.use_drafters([drafter], max_drafts)
    return scheduler, drafter


def next_plan(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    return plan


def result_of(plan: StepPlan, tokens: Items[int]) -> StepResult:
    """Return the result of a plan with one row, which sampled these tokens."""
    return StepResult(plan.step_id, np.array(tokens, np.int32), np.array([0, len(tokens)], np.int32))


def test_a_row_has_its_known_token_and_the_drafts() -> None:
    scheduler, _ = drafting(max_drafts=3)
    plan = next_plan(scheduler)
    assert plan.input_ids.tolist() == [7, 20, 21, 22] and plan.num_drafts.tolist() == [3]
    assert plan.start_positions.tolist() == [3] and plan.sample_rows.tolist() == [0]
    assert scheduler.in_flight_steps[-1].num_prefill_tokens == 0


def test_confirmed_drafts_are_output_and_the_others_are_taken_back() -> None:
    scheduler, drafter = drafting()
    (output,) = scheduler.commit(result_of(next_plan(scheduler), [20, 21, 9]), 0.0)
    sequence = scheduler.sequences["a"]
    assert output.token_ids == (20, 21, 9) and sequence.token_ids == [1, 2, 3, 7, 20, 21, 9]
    assert sequence.num_scheduled_tokens == sequence.num_computed_tokens == 6 and not sequence.num_pending_samples
    assert sequence.table is not None and sequence.table.capacity == 8
    assert scheduler.check_integrity() == []
    counters = scheduler.counters
    assert (counters.drafts, counters.draft_tokens, counters.confirmed_draft_tokens) == (1, 8, 2)
    drafter.tokens = []
    plan = next_plan(scheduler)
    assert plan.input_ids.tolist() == [9] and plan.start_positions.tolist() == [6]


def test_blocks_that_confirmed_tokens_fill_are_published_and_no_others() -> None:
    scheduler, _ = drafting(block_size=2)
    sequence = scheduler.sequences["a"]
    scheduler.commit(result_of(next_plan(scheduler), [20, 21, 9]), 0.0)
    assert sequence.table is not None and sequence.table.num_published == 3


def test_tokens_behind_the_end_are_dropped() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, 30, stop=[21]), 0.0)
    run_step(scheduler)
    scheduler.use_drafters([FixedDrafter([20, 5, 22])], 8)
    (output,) = scheduler.commit(result_of(next_plan(scheduler), [20, 21]), 0.0)
    assert output.token_ids == (20, 21) and output.finish_reason == "stop"
    assert scheduler.check_integrity() == [] and scheduler.is_idle


def test_a_stop_token_or_an_id_outside_the_vocabulary_ends_the_drafts() -> None:
    for wrong in (3, 1000, -1):
        scheduler = make_scheduler()
        scheduler.add_request(make_request("a", [5, 6], 30, stop=[3]), 0.0)
        run_step(scheduler)
        scheduler.use_drafters([FixedDrafter([20, wrong, 22])], 8)
        assert next_plan(scheduler).input_ids.tolist() == [7, 20]


@for_each(("max_tokens", "limit"), [(2, None), (3, 1), (9, 7), (40, 8)])
def test_the_last_token_of_an_output_needs_no_draft(max_tokens: int, limit: int | None) -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, max_tokens), 0.0)
    run_step(scheduler)
    drafter = FixedDrafter(LONG)
    scheduler.use_drafters([drafter], 8)
    next_plan(scheduler)
    assert drafter.limits == ([] if limit is None else [limit])


def test_a_step_with_prompt_tokens_has_no_drafts() -> None:
    scheduler, drafter = drafting()
    scheduler.add_request(make_request("b", 9, 3), 0.0)
    assert not len(next_plan(scheduler).num_drafts) and not drafter.limits


def test_drafts_use_what_the_budget_leaves() -> None:
    scheduler, _ = drafting(max_batch_tokens=6)
    scheduler.add_request(make_request("b", 3, 30), 0.0)
    run_step(scheduler)
    plan = next_plan(scheduler)
    assert plan.num_tokens == 6 and plan.num_drafts.tolist() == [2, 2]


def train(scheduler: Scheduler, row_ms: float) -> None:
    """Let the step times be 10 ms and row_ms for each row."""
    for _ in range(40):
        for rows in (1, 2, 9):
            scheduler.step_times.update(StepFeatures(rows, 0, rows, 0.0), 10 + row_ms * rows)


@pytest.mark.measured_drafts
def test_a_step_whose_time_grows_with_its_rows_has_no_drafts_and_no_drafter_is_asked() -> None:
    scheduler, drafter = drafting()
    train(scheduler, 200.0)
    for _ in range(3):
        scheduler.add_request(make_request(f"b{len(scheduler.sequences)}", 3, 30), 0.0)
    run_step(scheduler)
    asked = len(drafter.limits)
    assert not len(next_plan(scheduler).num_drafts) and len(drafter.limits) == asked


@pytest.mark.measured_drafts
def test_wrong_drafts_lower_the_number_of_the_next_ones() -> None:
    scheduler, _ = drafting([20] * 8)
    train(scheduler, 1.0)
    counts = []
    for _ in range(12):
        plan = next_plan(scheduler)
        counts.append(int(plan.num_drafts.sum()))
        scheduler.commit(result_of(plan, [9]), 0.0)
    assert counts[0] > 2 and max(counts[4:]) <= 1 and sum(counts[4:]) < 8


@pytest.mark.measured_drafts
def test_right_drafts_are_many() -> None:
    scheduler, _ = drafting([20] * 8)
    train(scheduler, 0.5)
    for _ in range(2):
        plan = next_plan(scheduler)
        scheduler.commit(result_of(plan, [20] * (1 + int(plan.num_drafts[0]))), 0.0)
    assert next_plan(scheduler).num_drafts.tolist() == [8]


@for_each(("max_running_requests", "drafts"), [(3, [21, 20, 20]), (80, [26, 26, 25])])
def test_a_step_has_no_more_samples_than_the_runner_has_memory_for(
    max_running_requests: int, drafts: list[int]
) -> None:
    assert MIN_STEP_SAMPLES == 64
    scheduler, _ = drafting(max_drafts=30, max_running_requests=max_running_requests, max_model_len=200)
    for name in ("b", "c"):
        scheduler.add_request(make_request(name, 3, 60), 0.0)
    run_step(scheduler)
    plan = next_plan(scheduler)
    assert plan.num_samples == max(64, max_running_requests) and plan.num_drafts.tolist() == drafts


@for_each(("num_left", "num_drafts"), [(3, [8]), (2, []), (1, [])])
def test_drafts_take_no_block_that_a_running_sequence_needs_next(num_left: int, num_drafts: list[int]) -> None:
    scheduler, _ = drafting(num_blocks=16, block_size=4)
    pool = scheduler.cache.pool
    pool.allocate(pool.available - num_left)
    # The sequence has one block; with 8 drafts it needs two more.
    assert next_plan(scheduler).num_drafts.tolist() == num_drafts


def test_a_grammar_ends_the_drafts_before_the_first_token_that_it_does_not_allow() -> None:
    scheduler = make_scheduler(vocab_size=VOCAB_SIZE)
    request = make_request("a", 3, 30, stop=[EOS])
    scheduler.add_request(request, 0.0, [grammar_of(regex="a(bc)*!")])
    run_step(scheduler, token=ord("a"))
    scheduler.use_drafters([FixedDrafter(list(b"bcbb"))], 8)
    plan = next_plan(scheduler)
    assert plan.num_drafts.tolist() == [3] and plan.masked_samples.tolist() == [0, 1, 2, 3]
    grammars = scheduler.in_flight_steps[-1].mask_grammars
    assert len(grammars) == 4 and scheduler.in_flight_steps[-1].open_grammars == grammars[:1]
    (output,) = scheduler.commit(result_of(plan, list(b"bcb")), 0.0)
    assert output.token_ids == tuple(b"bcb")


def test_after_a_failed_step_a_sequence_has_no_drafts_and_is_not_at_fault() -> None:
    scheduler, _ = drafting()
    assert scheduler.rollback(next_plan(scheduler), RuntimeError("a draft"), 0.0) == []
    sequence = scheduler.sequences["a"]
    assert sequence.num_scheduled_tokens == 3 and not sequence.num_pending_samples and not sequence.drafts
    for _ in range(2):
        plan, _ = run_step(scheduler)
        assert plan.num_tokens == 1


def test_with_two_steps_in_flight_a_sequence_waits_for_the_sample_before_its_drafts() -> None:
    scheduler, drafter = drafting([], overlap=True)
    first = next_plan(scheduler)
    drafter.tokens = [8, 20, 21]
    assert scheduler.schedule(0.0) is None
    scheduler.commit(make_result(first, 8), 0.0)
    drafter.tokens = [20, 21]
    plan = next_plan(scheduler)
    assert plan.input_ids.tolist() == [8, 20, 21]
    assert scheduler.schedule(0.0) is None


def test_a_preempted_sequence_gets_the_tokens_of_its_step() -> None:
    scheduler, _ = drafting()
    plan = next_plan(scheduler)
    sequence = scheduler.sequences["a"]
    scheduler.table.preempt(sequence, 0.0)
    (output,) = scheduler.commit(result_of(plan, [20, 21, 9]), 0.0)
    assert output.token_ids == (20, 21, 9) and sequence.num_computed_tokens == 0
    assert scheduler.check_integrity() == []
    drafted = next_plan(scheduler)
    assert drafted.num_tokens == 7


def test_with_two_steps_in_flight_no_sequence_waits_while_a_prompt_is_computed() -> None:
    scheduler, drafter = drafting([], overlap=True, max_chunk_tokens=4)
    scheduler.add_request(make_request("b", list(range(100, 130)), 3), 0.0)
    steps = [next_plan(scheduler)]
    drafter.tokens = [8, 20, 21]
    for _ in range(5):
        steps.append(next_plan(scheduler))
        assert steps[-1].num_rows == 2, "the decoding sequence has a token, too"
        scheduler.commit(make_result(steps.pop(0), 8), 0.0)


@pytest.mark.measured_drafts
def test_drafts_do_not_make_a_step_longer_than_its_target() -> None:
    for target, most in ((None, 8), (14.0, 2), (11.0, 0)):
        scheduler, _ = drafting([20] * 8, target_itl_ms=target)
        train(scheduler, 1.0)
        for _ in range(3):
            plan = next_plan(scheduler)
            scheduler.commit(result_of(plan, [20] * (1 + int(plan.num_drafts.sum()))), 0.0)
        assert int(next_plan(scheduler).num_drafts.sum()) <= most, target


def test_in_a_step_of_many_sequences_those_without_drafts_are_asked_about_rarely() -> None:
    scheduler, drafter = drafting([])
    for number in range(31):
        scheduler.add_request(make_request(f"b{number}", [600 + number, 5, 6], 30), 0.0)
    run_step(scheduler)
    asked = []
    for _ in range(20):
        before = len(drafter.limits)
        run_step(scheduler)
        asked.append(len(drafter.limits) - before)
    assert max(asked) > 10 and 20 <= sum(asked[-8:]) <= 40
