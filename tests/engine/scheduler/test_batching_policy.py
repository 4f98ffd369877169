"""Batching policies: the decisions of each, and the choice by name."""

from dataclasses import replace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.queue_wait_by_reason import WaitReason
from chairlift.engine.scheduler.batching_policy import (
    BATCHING_POLICIES,
    DECODE_FIRST_SHARE,
    DEFAULT_SAFETY_MARGIN,
    MAX_PREFILL_STREAK,
    NAMES,
    DecodeFirstBatching,
    FifoBatching,
    MixedBatching,
    PrefillFirstBatching,
    StaticBatching,
    StepAllowance,
    StepContext,
    make_batching_policy,
)
from support_engine import make_request, make_result, make_scheduler, rows_of, run_step

BUDGET = 64
BUSY = StepContext(running=5, num_decoding=4, num_prefilling=1, free_share=0.5, num_free_slots=3, num_newly_scheduled=0,
            waiting_stopped_by=WaitReason.BUDGET, prefill_budget=BUDGET)  # fmt: skip
EMPTY = replace(BUSY, running=0, num_decoding=0, num_prefilling=0, num_free_slots=8)


def test_mixed_grants_everything_always() -> None:
    assert MixedBatching().decide(replace(BUSY, free_share=0.0)) == StepAllowance(BUDGET)


@pytest.mark.parametrize(
    ("free_share", "generating", "reading", "share"),
    [
        (0.3, 1, 1, StepAllowance(BUDGET)),
        (0.2, 1, 1, StepAllowance(BUDGET)),
        (0.19, 1, 1, StepAllowance(0, may_schedule_waiting=False)),
        (0.19, 0, 1, StepAllowance(BUDGET, may_schedule_waiting=False)),
        (0.0, 0, 0, StepAllowance(BUDGET)),
    ],
)
def test_below_the_margin_prompts_run_only_when_no_sequence_decodes(
    free_share: float, generating: int, reading: int, share: StepAllowance
) -> None:
    rows_by_step = replace(BUSY, free_share=free_share, num_decoding=generating, num_prefilling=reading)
    assert FifoBatching(0.2).decide(rows_by_step) == share


def test_prefill_first_leaves_out_those_who_generate_so_many_times_in_a_row_at_most() -> None:
    policy = PrefillFirstBatching()
    first = [policy.decide(BUSY).prompts_first for _ in range(2 * (MAX_PREFILL_STREAK + 1))]
    assert first == ([True] * MAX_PREFILL_STREAK + [False]) * 2


def test_decode_first_gives_prompts_a_small_share_while_a_sequence_decodes() -> None:
    assert DecodeFirstBatching().decide(BUSY) == StepAllowance(BUDGET // DECODE_FIRST_SHARE)
    assert DecodeFirstBatching().decide(EMPTY) == StepAllowance(BUDGET)
    assert DecodeFirstBatching().decide(replace(BUSY, prefill_budget=3)).prefill_tokens == 1, (
        "never none: they would starve"
    )


def test_static_fills_reads_generates_and_only_then_fills_again() -> None:
    policy = StaticBatching()
    filling = StepAllowance(BUDGET, may_schedule_waiting=True, prompts_first=True, generating=False)
    assert policy.decide(EMPTY) == filling
    assert policy.decide(replace(BUSY, num_newly_scheduled=3)) == filling, "the budget ended the step, not the batch"
    assert policy.decide(replace(BUSY, num_newly_scheduled=0)) == filling, (
        "the prompts of the batch took the whole step"
    )
    closed = replace(BUSY, waiting_stopped_by=WaitReason.BLOCKS)
    assert policy.decide(closed) == replace(filling, may_schedule_waiting=False), "its prompts are still prefilling"
    assert policy.decide(replace(closed, num_prefilling=0)) == StepAllowance(
        BUDGET, may_schedule_waiting=False, prompts_first=True
    )
    assert policy.decide(replace(BUSY, num_newly_scheduled=3)).may_schedule_waiting is False, (
        "a batch that is closed stays so"
    )
    assert policy.decide(replace(EMPTY, running=1)).may_schedule_waiting is False, "its last token is still in flight"
    assert policy.decide(EMPTY) == filling


@pytest.mark.parametrize("stopped_by", [None, WaitReason.BLOCKS, WaitReason.RUNNING_LIMIT, WaitReason.POLICY])
def test_static_goes_on_filling_only_after_a_step_that_its_budget_ended(stopped_by: WaitReason | None) -> None:
    """A used-up budget means that prompts advanced, so this ends."""
    policy = StaticBatching()
    policy.decide(EMPTY)
    assert (
        policy.decide(replace(BUSY, num_newly_scheduled=3, waiting_stopped_by=stopped_by)).may_schedule_waiting is False
    )


def test_static_starts_no_more_than_the_slots_although_some_finish_meanwhile() -> None:
    """Otherwise requests with one output token keep coming, and the others of the batch never decode."""
    policy = StaticBatching()
    policy.decide(EMPTY)
    assert [policy.decide(replace(BUSY, num_newly_scheduled=3)).may_schedule_waiting for _ in range(3)] == [
        True,
        True,
        False,
    ]
    policy.decide(EMPTY)
    assert policy.decide(replace(BUSY, num_newly_scheduled=3)).may_schedule_waiting, "counted anew for each batch"


@pytest.mark.parametrize("name", NAMES)
def test_policies_are_chosen_by_name(name: str) -> None:
    kinds = {**BATCHING_POLICIES, "fifo": FifoBatching}
    assert type(make_batching_policy(SchedulerConfig(batching_policy=name))) is kinds[name]


@pytest.mark.parametrize(("margin", "free"), [(None, DEFAULT_SAFETY_MARGIN), (0.5, 0.5)])
def test_the_margin_is_the_given_one(margin: float | None, free: float) -> None:
    fifo = make_batching_policy(SchedulerConfig(batching_policy="fifo", safety_margin=margin))
    assert fifo.decide(replace(BUSY, free_share=free)).may_schedule_waiting
    assert not fifo.decide(replace(BUSY, free_share=free - 0.01)).may_schedule_waiting


@pytest.mark.parametrize(
    ("name", "margin", "message"),
    [
        ("fifo", 1.0, "at least 0 and less than 1, got 1.0"),
        ("fifo", -0.1, "at least 0 and less than 1, got -0.1"),
        ("fifo", float("nan"), "at least 0 and less than 1, got nan"),
        ("mixed", 0.2, "needs batching_policy 'fifo'"),
        (
            "other",
            None,
            "unknown batching_policy 'other'; available are decode_first, fifo, mixed, prefill_first",
        ),
    ],
)
def test_an_impossible_choice_is_refused(name: str, margin: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_batching_policy(SchedulerConfig(batching_policy=name, safety_margin=margin))


# -- in the scheduler ----------------------------------------------------------------------------------------------


def steps(batching: str, count: int, **options: int) -> list[dict[str, int]]:
    """Run a request with 3 output tokens, then one with a prompt of 12 and one with a prompt of 4."""
    scheduler = make_scheduler(batching_policy=batching, max_batch_tokens=8, long_prefill_threshold=8, **options)
    scheduler.add_request(make_request("a", [500] * 4, 4), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [501] * 12, 2), 0.0)
    scheduler.add_request(make_request("c", [502] * 4, 2), 0.0)
    rows_by_step = []
    for _ in range(count):
        scheduler.schedule(0.0)
        rows_by_step.append(rows_of(scheduler))
        scheduler.commit(make_result(scheduler.in_flight_steps[-1].plan), 0.0)
    return rows_by_step


def test_mixed_in_the_scheduler() -> None:
    assert steps("mixed", 2) == [{"a": 1, "b": 7}, {"a": 1, "b": 5, "c": 2}]


def test_prefill_first_in_the_scheduler() -> None:
    assert steps("prefill_first", 3) == [{"b": 8}, {"b": 4, "c": 4}, {"a": 1, "b": 1, "c": 1}]


def test_decode_first_in_the_scheduler() -> None:
    assert steps("decode_first", 4) == [{"a": 1, "b": 1}] * 3 + [{"b": 8}]


def test_static_in_the_scheduler() -> None:
    assert steps("static", 6) == [{"a": 1}, {"a": 1}, {"a": 1}, {"b": 8}, {"b": 4, "c": 4}, {"b": 1, "c": 1}]


def test_a_static_batch_is_filled_over_several_steps_and_keeps_its_slots_empty() -> None:
    scheduler = make_scheduler(batching_policy="static", max_batch_tokens=8, max_running_requests=3,
                               long_prefill_threshold=4)  # fmt: skip
    for number in range(5):
        scheduler.add_request(make_request(str(number), [510 + number] * 4, 2 + 3 * (number == 2)), 0.0)
    rows_by_step = []
    while scheduler.sequences:
        scheduler.schedule(0.0)
        rows_by_step.append(set(rows_of(scheduler)))
        scheduler.commit(make_result(scheduler.in_flight_steps[-1].plan), 0.0)
    assert rows_by_step == [{"0", "1"}, {"2"}, {"0", "1", "2"}, *[{"2"}] * 3, {"3", "4"}, {"3", "4"}]


def test_a_static_batch_is_filled_although_its_prompts_take_several_steps() -> None:
    scheduler = make_scheduler(batching_policy="static", max_batch_tokens=64, max_running_requests=8, num_blocks=400,
                               caching=False)  # fmt: skip
    for number in range(8):
        scheduler.add_request(make_request(str(number), [510 + number] * 40, 5), 0.0)
    most = 0
    while scheduler.sequences:
        run_step(scheduler)
        most = max(most, len(scheduler.running))
    assert most == 8


@pytest.mark.parametrize("overlap", [False, True])
def test_a_static_batch_waits_for_the_last_token_of_the_one_before(overlap: bool) -> None:
    """With overlap some have ended before the others' last tokens are back; their slots are not free yet."""
    scheduler = make_scheduler(batching_policy="static", overlap=overlap, max_running_requests=8, num_blocks=400,
                               caching=False)  # fmt: skip
    for number in range(24):
        scheduler.add_request(make_request(str(number), [510 + number] * 4, 6 if number % 8 < 4 else 10), 0.0)
    batches, plans = [], []
    while scheduler.sequences:
        if (plan := scheduler.schedule(0.0)) is not None:
            plans.append(plan)
            batches.append(len(plan.new_sequences))
        if plan is None or len(plans) == scheduler.config.max_in_flight_steps:
            scheduler.commit(make_result(plans.pop(0)), 0.0)
    assert [size for size in batches if size] == [8, 8, 8]


def test_under_the_margin_a_newcomer_waits_until_blocks_are_free() -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4, batching_policy="fifo", safety_margin=0.5)
    scheduler.add_request(make_request("a", [500] * 24, 3), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [501] * 3, 9), 0.0)
    rows_by_step = []
    for _ in range(3):
        scheduler.schedule(0.0)
        rows_by_step.append(rows_of(scheduler))
        scheduler.commit(make_result(scheduler.in_flight_steps[-1].plan), 0.0)
    assert rows_by_step == [{"a": 1}, {"a": 1}, {"b": 3}]
