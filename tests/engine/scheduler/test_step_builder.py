"""StepBuilder: rows with one token first, a NewSequence for new sequences, unknown ids as LAST_SAMPLED."""

from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import LAST_SAMPLED
from support_engine import answer, ask, make_scheduler, turn


def two() -> Scheduler:
    """One that generates, one that has read 4 of its 12 prompt tokens."""
    scheduler = make_scheduler(max_chunk_tokens=4, prefix_wait_steps=0)
    scheduler.add_request(ask("b", [9], 9), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("a", 12, 9), 0.0)
    turn(scheduler)
    return scheduler


def test_rows_with_one_token_come_first() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(ask("a", [1, 2, 3], 9), 0.0)
    scheduler.add_request(ask("b", [9], 9), 0.0)
    plan, _ = turn(scheduler)
    assert plan.num_new_tokens.tolist() == [1, 3] and plan.input_ids.tolist() == [9, 1, 2, 3]
    assert plan.start_positions.tolist() == [0, 0]


def test_only_rows_that_reach_the_last_token_are_sampled() -> None:
    plan, _ = turn(two())
    assert plan.num_new_tokens.tolist() == [1, 4] and plan.sample_rows.tolist() == [0]
    assert plan.input_ids.tolist() == [7, 5, 6, 7, 8] and plan.start_positions.tolist() == [2, 4]


def test_who_is_known_brings_its_new_blocks_only() -> None:
    scheduler = two()
    plan, _ = turn(scheduler)
    table = scheduler.sequences["a"].table
    assert table is not None and plan.new_sequences == ()
    assert plan.new_blocks.tolist() == [[scheduler.sequences["a"].slot, 0, 1, table.groups[0][1]]]


def test_after_a_rollback_every_sequence_is_new_with_all_its_blocks() -> None:
    scheduler = two()
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.rollback(plan)
    again = scheduler.schedule(0.0)
    assert again is not None
    assert [card.token_ids for card in again.new_sequences] == [(9, 7, 7), tuple(range(1, 13))]
    assert [card.num_output_tokens for card in again.new_sequences] == [2, 0]
    assert len(again.new_blocks) == 3


def test_a_token_that_is_not_known_yet_is_named_last_sampled() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(ask("a", 3, 9), 0.0)
    first = scheduler.schedule(0.0)
    second = scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert second.input_ids.tolist() == [LAST_SAMPLED] and second.start_positions.tolist() == [3]
    scheduler.commit(answer(first, 5), 0.0)
    third = scheduler.schedule(0.0)
    assert third is not None and third.input_ids.tolist() == [LAST_SAMPLED] and third.start_positions.tolist() == [4]


def test_the_in_flight_step_counts_prompt_tokens() -> None:
    scheduler = two()
    scheduler.schedule(0.0)
    assert scheduler.in_flight_steps[0].num_prefill_tokens == 4


def sequence(prompt: int) -> Sequence:
    return Sequence(ask("a", prompt, 9), 0, b"root", 0.0)


def test_taking_back_a_chunk_gives_the_step_its_tokens_again() -> None:
    """Also a chunk of one token, which counts as prompt as long as more of it is to be read."""
    for count in (1, 5):
        builder, added = StepBuilder(20, 10), sequence(9)
        builder.add_prefill(added, count)
        assert (builder.tokens_left, builder.prefill_left) == (20 - count, 10 - count)
        builder.remove(added)
        assert (builder.tokens_left, builder.prefill_left, builder.num_rows) == (20, 10, 0)


def test_taking_back_a_generated_token_leaves_the_prompt_budget_alone() -> None:
    builder, added = StepBuilder(20, 10), sequence(1)
    builder.add_decodes([added])
    builder.new_blocks[added] = [(0, 0, 3)]
    builder.remove(added)
    assert (builder.tokens_left, builder.prefill_left, builder.new_blocks) == (20, 10, {})


def test_removing_a_sequence_without_a_row_changes_nothing() -> None:
    builder = StepBuilder(20, 10)
    builder.remove(sequence(9))
    assert (builder.tokens_left, builder.prefill_left) == (20, 10)
