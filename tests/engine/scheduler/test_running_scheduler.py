"""Who wants what on board, and that nobody rides who had to leave in the same step."""

import pytest

from chairlift.engine.scheduler.running_scheduler import Riding
from chairlift.engine.scheduler.step_builder import Draft
from support_engine import ask, make_scheduler, turn


def names(sequences: list) -> list[str]:  # type: ignore[type-arg]
    return [sequence.name for sequence in sequences]


def test_those_on_board_are_sorted_by_what_they_want() -> None:
    scheduler = make_scheduler(block_size=4, max_chunk_tokens=4)
    for name, prompt in (("ready", 3), ("growing", 4), ("reading", 9)):
        scheduler.add(ask(name, [500 + prompt] * prompt, 9), 0.0)
    turn(scheduler)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    found = riding.sort(list(scheduler.running.values()))
    assert (names(found.ready), names(found.growing), names(found.reading)) == (["ready"], ["growing"], ["reading"])
    assert found.num_generating == 2


def test_who_has_its_last_token_in_flight_wants_nothing() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add(ask("a", 3, 1), 0.0)
    scheduler.schedule(0.0)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    found = riding.sort(list(scheduler.running.values()))
    assert not found.ready + found.growing + found.reading


def test_who_was_sent_away_for_a_prompt_does_not_ride_in_that_step() -> None:
    """Where prompts go first, a victim still stands among those who want a token."""
    scheduler = make_scheduler(prefix_wait_steps=0)
    for name in ("stays", "leaves"):
        scheduler.add(ask(name, 3, 9), 0.0)
    turn(scheduler)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    on_board = riding.sort(list(scheduler.running.values()))
    scheduler.roster.preempt(scheduler.sequences["leaves"], 0.0)
    draft = Draft(64, 64, preempted=True)
    riding.generate(draft, on_board, 0.0)
    assert names(draft.decodes) == ["stays"] and draft.tokens_left == 63


@pytest.mark.parametrize(
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
    """A quarter, or the part that the configuration says; never more than it says."""
    scheduler = make_scheduler(max_batch_tokens=64, **options)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    assert riding.fair_chunk(Draft(64, left)) == fair
    assert riding.fair_chunk(Draft(left, 64)) == fair, "those who generate have taken the rest"


@pytest.mark.parametrize(
    ("options", "wanted", "left", "count"),
    [
        ({}, 33, 64, 16),
        ({}, 32, 64, 32),  # the end of a prompt
        ({}, 20, 12, 12),  # as far as the step goes
        ({"max_chunk_tokens": 20}, 30, 64, 16),
        ({"max_chunk_tokens": 20}, 20, 64, 20),
        ({"long_prefill_threshold": 16}, 17, 64, 16),  # who says a threshold means it
    ],
)
def test_a_prompt_that_half_a_step_ends_is_read_to_its_end(
    options: dict[str, int], wanted: int, left: int, count: int
) -> None:
    scheduler = make_scheduler(max_batch_tokens=64, **options)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    assert riding.fairly(Draft(64, left), wanted, 16, 0) == count


def test_ends_of_prompts_keep_to_their_part_where_a_step_has_little_for_prompts() -> None:
    scheduler = make_scheduler(max_batch_tokens=64)
    riding = Riding(scheduler.config, scheduler.cache, scheduler.roster, 1)
    draft = Draft(64, 16)
    fair = riding.fair_chunk(draft)
    assert fair == 4 and [riding.fairly(draft, wanted, fair, 0) for wanted in (8, 9)] == [8, 4]
