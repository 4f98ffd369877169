"""RunningScheduler: sorts running sequences by need; a victim gets no tokens in the step that preempted it."""

from chairlift.engine.scheduler.running_scheduler import RunningScheduler
from chairlift.engine.scheduler.step_builder import StepBuilder
from support_engine import make_request, make_scheduler, run_step
from support_shares import for_each


def names(sequences: list) -> list[str]:  # type: ignore[type-arg]
    return [sequence.request_id for sequence in sequences]


def test_running_sequences_are_sorted_by_what_they_need() -> None:
    scheduler = make_scheduler(block_size=4, max_chunk_tokens=4)
    for name, prompt in (("ready", 3), ("growing", 4), ("prefilling", 9)):
        scheduler.add_request(make_request(name, [500 + prompt] * prompt, 9), 0.0)
    run_step(scheduler)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    sets = running_scheduler.classify(list(scheduler.running.values()))
    assert (names(sets.decode_ready), names(sets.decode_needs_block), names(sets.prefilling)) == (
        ["ready"],
        ["growing"],
        ["prefilling"],
    )
    assert sets.num_decoding == 2


def test_a_sequence_with_its_last_token_in_flight_needs_none() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 3, 1), 0.0)
    scheduler.schedule(0.0)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    sets = running_scheduler.classify(list(scheduler.running.values()))
    assert not sets.decode_ready + sets.decode_needs_block + sets.prefilling


def test_a_victim_of_a_prompt_gets_no_token_in_that_step() -> None:
    """If prompts go first, a victim is still in the set of decoding sequences."""
    scheduler = make_scheduler(prefix_wait_steps=0)
    for name in ("stays", "leaves"):
        scheduler.add_request(make_request(name, 3, 9), 0.0)
    run_step(scheduler)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    running_sets = running_scheduler.classify(list(scheduler.running.values()))
    scheduler.table.preempt(scheduler.sequences["leaves"], 0.0)
    builder = StepBuilder(64, 64, preempted=True)
    running_scheduler.schedule_decodes(builder, running_sets, 0.0)
    assert names(builder.decodes) == ["stays"] and builder.tokens_left == 63


@for_each(
    ("options", "left", "fair"),
    [
        ({}, 64, 16),
        ({}, 8, 2),
        ({}, 3, 1),
        ({"long_prefill_threshold": 64}, 64, 64),
        ({"long_prefill_threshold": 64}, 8, 8),
        ({"long_prefill_threshold": 5}, 40, 5),
        ({"long_prefill_threshold": 5}, 8, 2),
    ],
)
def test_the_fair_chunk_is_a_part_of_what_the_step_has_for_prompts(
    options: dict[str, int], left: int, fair: int
) -> None:
    """It is a quarter, or the configured part, and never more than the configured chunk."""
    scheduler = make_scheduler(max_batch_tokens=64, **options)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    assert running_scheduler.fair_chunk(StepBuilder(64, left)) == fair
    assert running_scheduler.fair_chunk(StepBuilder(left, 64)) == fair, "decoding sequences have taken the rest"


@for_each(
    ("options", "num_unscheduled", "left", "count"),
    [
        ({}, 33, 64, 16),
        ({}, 32, 64, 32),  # the end of a prompt
        ({}, 20, 12, 12),  # as far as the step goes
        ({"max_chunk_tokens": 20}, 30, 64, 16),
        ({"max_chunk_tokens": 20}, 20, 64, 20),
        ({"long_prefill_threshold": 16}, 17, 64, 16),  # a configured threshold is a hard limit
    ],
)
def test_a_prompt_that_half_a_step_ends_is_prefilled_to_its_end(
    options: dict[str, int], num_unscheduled: int, left: int, count: int
) -> None:
    scheduler = make_scheduler(max_batch_tokens=64, **options)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    assert running_scheduler.fair_chunk_tokens(StepBuilder(64, left), num_unscheduled, 16, 0) == count


def test_ends_of_prompts_keep_to_their_part_where_a_step_has_little_for_prompts() -> None:
    scheduler = make_scheduler(max_batch_tokens=64)
    running_scheduler = RunningScheduler(scheduler.config, scheduler.cache, scheduler.table, 1)
    builder = StepBuilder(64, 16)
    fair = running_scheduler.fair_chunk(builder)
    assert fair == 4 and [
        running_scheduler.fair_chunk_tokens(builder, num_unscheduled, fair, 0) for num_unscheduled in (8, 9)
    ] == [8, 4]
