"""StepBuilder: rows with one token first, a NewSequence for new sequences, unknown ids as LAST_SAMPLED."""

from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import LAST_SAMPLED
from support_engine import make_request, make_result, make_scheduler, run_step


def two_running() -> Scheduler:
    """Make a scheduler with a decoding sequence and one that has prefilled 4 of its 12 prompt tokens."""
    scheduler = make_scheduler(max_chunk_tokens=4, prefix_wait_steps=0)
    scheduler.add_request(make_request("b", [9], 9), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("a", 12, 9), 0.0)
    run_step(scheduler)
    return scheduler


def test_rows_with_one_token_come_first() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", [1, 2, 3], 9), 0.0)
    scheduler.add_request(make_request("b", [9], 9), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.num_new_tokens.tolist() == [1, 3] and plan.input_ids.tolist() == [9, 1, 2, 3]
    assert plan.start_positions.tolist() == [0, 0]


def test_only_rows_that_reach_the_last_token_are_sampled() -> None:
    plan, _ = run_step(two_running())
    assert plan.num_new_tokens.tolist() == [1, 4] and plan.sample_rows.tolist() == [0]
    assert plan.input_ids.tolist() == [7, 5, 6, 7, 8] and plan.start_positions.tolist() == [2, 4]


def test_a_known_sequence_sends_its_new_blocks_only() -> None:
    scheduler = two_running()
    plan, _ = run_step(scheduler)
    table = scheduler.sequences["a"].table
    assert table is not None and plan.new_sequences == ()
    assert plan.new_blocks.tolist() == [[scheduler.sequences["a"].slot, 0, 1, table.groups[0][1]]]


def test_after_a_rollback_every_sequence_is_new_with_all_its_blocks() -> None:
    scheduler = two_running()
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.rollback(plan)
    again = scheduler.schedule(0.0)
    assert again is not None
    assert [new_sequence.token_ids for new_sequence in again.new_sequences] == [(9, 7, 7), tuple(range(1, 13))]
    assert [new_sequence.num_output_tokens for new_sequence in again.new_sequences] == [2, 0]
    assert len(again.new_blocks) == 3


def test_a_token_that_is_not_known_yet_is_named_last_sampled() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 3, 9), 0.0)
    first = scheduler.schedule(0.0)
    second = scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert second.input_ids.tolist() == [LAST_SAMPLED] and second.start_positions.tolist() == [3]
    scheduler.commit(make_result(first, 5), 0.0)
    third = scheduler.schedule(0.0)
    assert third is not None and third.input_ids.tolist() == [LAST_SAMPLED] and third.start_positions.tolist() == [4]


def test_the_in_flight_step_counts_prompt_tokens() -> None:
    scheduler = two_running()
    scheduler.schedule(0.0)
    assert scheduler.in_flight_steps[0].num_prefill_tokens == 4


def sequence(prompt: int) -> Sequence:
    return Sequence(make_request("a", prompt, 9), 0, b"root", 0.0)


def test_removing_a_chunk_gives_the_step_its_tokens_again() -> None:
    """Also a chunk of one token, which counts as prefill while the prompt is incomplete."""
    for count in (1, 5):
        builder, added = StepBuilder(20, 10), sequence(9)
        builder.add_prefill(added, count)
        assert (builder.tokens_left, builder.prefill_left) == (20 - count, 10 - count)
        builder.remove(added)
        assert (builder.tokens_left, builder.prefill_left, builder.num_rows) == (20, 10, 0)


def test_removing_a_decode_leaves_the_prefill_budget_alone() -> None:
    builder, added = StepBuilder(20, 10), sequence(1)
    builder.add_decodes([added])
    builder.new_blocks[added] = [(0, 0, 3)]
    builder.remove(added)
    assert (builder.tokens_left, builder.prefill_left, builder.new_blocks) == (20, 10, {})


def test_removing_a_sequence_without_a_row_changes_nothing() -> None:
    builder = StepBuilder(20, 10)
    builder.remove(sequence(9))
    assert (builder.tokens_left, builder.prefill_left) == (20, 10)
