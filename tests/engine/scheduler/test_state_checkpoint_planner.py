"""StateCheckpointPlanner: where states are saved, when they are published, and that a save never waits."""

from dataclasses import replace

import pytest

from chairlift.core.block_hash import extend_block_hashes, root_hash
from chairlift.core.errors import SamplingFailed
from chairlift.engine.config import CacheConfig
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.state_checkpoint_planner import (
    MIN_INTERVAL_TOKENS,
    can_save_drafts,
    checkpoint_interval,
)
from chairlift.engine.standalone_scheduler import StandaloneScheduler
from chairlift.engine.step_plan import NO_LOADS, NO_SAVES, StepPlan
from support_engine import EngineHarness, make_request, make_result, make_scheduler, run_step, run_to_end
from support_shares import for_each

FAKE = FakeConfig(vocab_size=500, num_blocks=200, block_size=4, has_state=True, num_state_checkpoints=20)


def with_states(num_state_checkpoints: int = 20, **options: object) -> StandaloneScheduler:
    return make_scheduler(num_state_checkpoints=num_state_checkpoints, num_blocks=200, **options)  # type: ignore[arg-type]


def saved_ends(plan: StepPlan) -> list[int]:
    """Return the positions of the states that a plan saves."""
    return [int(plan.start_positions[row]) + number for row, number, _ in plan.state_saves.tolist()]


def scheduled(scheduler: StandaloneScheduler) -> StepPlan:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    return plan


# -- where -------------------------------------------------------------------------------------------------------------


@for_each(
    ("prompt", "boundaries", "expected"),
    [
        (1, (), []), (3, (), []), (4, (), [4]), (5, (), [4]), (11, (), [8]), (12, (), [8, 12]), (13, (), [12]),
        (30, (3, 4, 18), [4, 16, 28]), (30, (29, 30, 0), [28]), (12, (12,), [8, 12]),
    ],
)  # fmt: skip
def test_states_are_saved_before_the_prompts_last_token_and_before_each_boundary(
    prompt: int, boundaries: tuple[int, ...], expected: list[int]
) -> None:
    scheduler = with_states()
    scheduler.add_request(make_request("a", prompt, 3, prefix_boundaries=boundaries), 0.0)
    plan, _ = run_step(scheduler)
    assert saved_ends(plan) == expected
    assert scheduler.check_integrity() == []


def test_chunks_save_what_lies_in_them() -> None:
    scheduler = with_states(max_batch_tokens=7)
    scheduler.add_request(make_request("a", 30, 2, prefix_boundaries=(9, 14, 20)), 0.0)
    assert [saved_ends(run_step(scheduler)[0]) for _ in range(5)] == [[], [8, 12], [20], [28], []]


def test_only_the_last_boundaries_of_many_are_used() -> None:
    scheduler = with_states()
    boundaries = tuple(range(4, 100, 4))
    scheduler.add_request(make_request("a", 100, 2, prefix_boundaries=boundaries[::-1]), 0.0)
    assert saved_ends(run_step(scheduler)[0]) == [68, 72, 76, 80, 84, 88, 92, 96, 100]


@for_each(
    ("longest", "checkpoints", "block_size", "expected"),
    [
        (100_000, 200, 16, 2048), (100_000, 96, 16, 4096), (100_000, 2, 16, 131_072), (4096, 4, 16, 2048),
        (100_000, 1, 16, 0), (100_000, 0, 16, 0), (100_000, 200, 37, 2072),
    ],
)  # fmt: skip
def test_long_prompts_save_states_on_the_way_that_take_at_most_half_of_the_pool(
    longest: int, checkpoints: int, block_size: int, expected: int
) -> None:
    interval = checkpoint_interval(longest, checkpoints, block_size)
    assert interval == expected and interval % block_size == 0
    assert not interval or longest / interval <= max(1, checkpoints // 2)


def test_a_long_prompt_that_is_cut_short_starts_at_the_last_state_on_its_way() -> None:
    fake = replace(FAKE, max_model_len=8192, num_blocks=4000, block_size=16)
    harness = EngineHarness(fake, max_batch_tokens=1000)
    prompt = [token % 450 for token in range(5000)]
    harness.submit(make_request("a", prompt, 2))
    harness.drain()
    harness.submit(make_request("b", [*prompt[:4500], 499, 498], 2), make_request("c", prompt[:2000], 2))
    harness.drain()
    cached = {name: final.usage.cached_tokens for name, final in harness.finals.items() if final.usage}
    assert cached == {"a": 0, "b": 2 * MIN_INTERVAL_TOKENS, "c": 0}


def test_a_state_in_the_pool_is_not_saved_again() -> None:
    scheduler = with_states()
    scheduler.add_request(make_request("a", 13, 1), 0.0)
    run_to_end(scheduler)
    scheduler.add_request(make_request("b", [*range(1, 14), 99], 1), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.start_positions.tolist() == [12] and saved_ends(plan) == []
    assert scheduler.cache.checkpoints.num_saves == 1


def test_a_prefix_that_is_shared_without_a_state_gets_one_when_it_is_computed_again() -> None:
    """The third of several prompts with a common start begins behind it, though no request named the boundary."""
    scheduler = with_states()
    starts = []
    for name, last in (("a", 90), ("b", 91), ("c", 92)):
        scheduler.add_request(make_request(name, [*range(1, 19), *[last] * 9], 1), 0.0)
        plan = scheduled(scheduler)
        starts.append((plan.start_positions.tolist(), saved_ends(plan)))
        scheduler.commit(make_result(plan), 0.0)
    assert starts == [([0], [24]), ([0], [16, 24]), ([16], [24])]


@for_each("caching", [True, False])
def test_a_model_without_states_has_none_in_its_plans(caching: bool) -> None:
    scheduler = make_scheduler(caching=caching)
    scheduler.add_request(make_request("a", 13, 9, prefix_boundaries=(4, 8)), 0.0)
    for _ in range(5):
        plan, _ = run_step(scheduler)
        assert plan.state_loads is NO_LOADS and plan.state_saves is NO_SAVES
    assert scheduler.sequences["a"].checkpoint_positions == ()


@for_each(("caching", "checkpoints"), [(False, 20), (True, 0)])
def test_without_prefix_caching_or_checkpoints_no_state_is_saved_and_none_is_found(
    caching: bool, checkpoints: int
) -> None:
    harness = EngineHarness(replace(FAKE, num_state_checkpoints=checkpoints), caching=caching)
    for name in "ab":
        harness.submit(make_request(name, 30, 6))
        harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.scheduler.counters.cached_tokens == 0 and harness.cache.checkpoints.num_saves == 0


# -- rolling -----------------------------------------------------------------------------------------------------------


@for_each("overlap", [True, False])
@for_each("prompt", [6, 8])
def test_a_finished_sequence_leaves_one_state_near_its_end_and_the_one_of_its_prompt(
    prompt: int, overlap: bool
) -> None:
    harness = EngineHarness(FAKE, overlap=overlap)
    harness.submit(make_request("a", prompt, 21))
    harness.drain()
    tokens = [*range(1, prompt + 1), *harness.tokens["a"]]
    pool = harness.cache.checkpoints
    assert pool.counts().cached == 2 and pool.num_saves > 4
    hashes: list[bytes] = []
    extend_block_hashes(hashes, root_hash("fake-0", "", ""), tokens, 4)
    assert harness.cache.match(hashes, len(tokens) + 1).num_tokens == (24 if prompt == 6 else 28)
    assert harness.cache.match(hashes, prompt).num_tokens == 4
    harness.close()


def test_a_rolling_state_that_is_loaded_is_not_replaced_before() -> None:
    scheduler = with_states(max_running_requests=4)
    scheduler.add_request(make_request("a", 6, 30), 0.0)
    for _ in range(8):
        run_step(scheduler)
    sequence = scheduler.sequences["a"]
    rolling = sequence.rolling_checkpoint
    assert rolling is not None and rolling == sequence.block_hashes[2]
    scheduler.add_request(make_request("b", sequence.token_ids[:13], 2), 0.0)
    plan = scheduled(scheduler)
    assert plan.start_positions.tolist()[1:] == [12] and len(plan.state_loads) == 1
    while sequence.rolling_checkpoint == rolling:
        scheduler.commit(make_result(plan), 0.0)
        plan = scheduled(scheduler)
    assert scheduler.cache.checkpoints.lookup(rolling) is None and scheduler.check_integrity() == []


def test_in_a_full_pool_a_rolling_state_takes_the_place_of_its_own_last_one() -> None:
    scheduler = with_states(2)
    scheduler.add_request(make_request("a", [9] * 9, 1), 0.0)
    run_to_end(scheduler)
    old = scheduler.cache.checkpoints
    assert old.counts().cached == 1
    scheduler.add_request(make_request("b", 3, 40), 0.0)
    run_to_end(scheduler)
    assert old.num_saves > 8 and old.num_evictions == 0
    scheduler.add_request(make_request("c", [9] * 10, 1), 0.0)
    assert scheduled(scheduler).start_positions.tolist() == [8]


def test_in_a_full_pool_the_rolling_states_of_many_sequences_leave_half_to_others() -> None:
    scheduler = with_states(6)
    for number in range(2):
        scheduler.add_request(make_request(f"old {number}", [90 + number] * 9, 1), 0.0)
    run_to_end(scheduler)
    for number in range(9):
        scheduler.add_request(make_request(f"{number}", [number, 1, 2], 30), 0.0)
    for _ in range(20):
        run_step(scheduler)
    running = scheduler.running.values()
    assert len(running) == 9 and sum(each.rolling_checkpoint is not None for each in running) == 4  # all free ones
    assert scheduler.cache.checkpoints.num_evictions == 0
    run_to_end(scheduler)
    scheduler.add_request(make_request("again", [91] * 10, 1), 0.0)
    assert scheduled(scheduler).start_positions.tolist() == [8]


# -- commit and rollback -----------------------------------------------------------------------------------------------


def test_a_state_is_shared_only_when_its_step_is_committed() -> None:
    scheduler = with_states(overlap=True)
    scheduler.add_request(make_request("a", 13, 5), 0.0)
    plan = scheduled(scheduler)
    assert scheduler.cache.checkpoints.counts().held == 1 and scheduler.cache.checkpoints.num_saves == 0
    scheduler.commit(make_result(plan), 0.0)
    counts = scheduler.cache.checkpoints.counts()
    assert (counts.held, counts.cached, scheduler.cache.checkpoints.num_saves) == (0, 1, 1)


def test_a_step_that_is_rolled_back_gives_its_checkpoints_back() -> None:
    scheduler = with_states()
    scheduler.add_request(make_request("a", 13, 5), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [*range(1, 14), 99, 98, 97, 96], 5), 0.0)
    plan = scheduled(scheduler)
    assert len(plan.state_loads) == len(plan.state_saves) == 1
    scheduler.rollback(plan, ValueError("boom"), 0.0)
    assert scheduler.cache.checkpoints.counts().held == 0 and scheduler.check_integrity() == []
    assert scheduler.cache.checkpoints.num_saves == 1


@for_each("fault", ["row", "abort", "preempt"])
def test_a_state_of_a_row_that_does_not_count_is_not_shared(fault: str) -> None:
    scheduler = with_states()
    scheduler.add_request(make_request("a", 13, 5), 0.0)
    plan = scheduled(scheduler)
    if fault == "abort":
        scheduler.abort("a", 0.0)
    elif fault == "preempt":
        scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    faults = [(0, SamplingFailed("chosen to fail"))] if fault == "row" else []
    scheduler.commit(make_result(plan, faults=faults), 0.0)
    pool = scheduler.cache.checkpoints
    assert pool.counts().free == pool.total and pool.num_saves == 0 and scheduler.check_integrity() == []


def test_a_start_that_is_taken_back_in_the_same_step_gives_its_checkpoint_back() -> None:
    scheduler = with_states()
    scheduler.add_request(make_request("a", 13, 1), 0.0)
    run_to_end(scheduler)
    scheduler.add_request(make_request("b", 20, 5), 0.0)
    sequence = scheduler.sequences["b"]
    hit = scheduler.table.match(sequence)
    sequence.table = scheduler.cache.allocate_table(hit, 16, sequence.block_hashes, sequence.checkpoint_positions)
    scheduler.table.start_running(sequence, 0.0)
    assert scheduler.cache.checkpoints.counts().held == 1 and scheduler.check_integrity() == []
    scheduler.table.preempt(sequence, 0.0)
    assert scheduler.cache.checkpoints.counts().held == 0 and scheduler.check_integrity() == []


def test_while_all_checkpoints_are_held_nothing_is_saved_and_nothing_waits() -> None:
    scheduler = with_states(1)
    scheduler.add_request(make_request("a", 13, 3), 0.0)
    scheduler.add_request(make_request("b", [*range(50, 63)], 3), 0.0)
    scheduler.add_request(make_request("c", [*range(50, 63)], 3), 0.0)
    plan = scheduled(scheduler)
    assert len(plan.slots) == 2 and len(plan.state_saves) == 1
    assert scheduler.cache.checkpoints.num_skipped_saves == 1
    scheduler.commit(make_result(plan), 0.0)
    plan = scheduled(scheduler)
    assert plan.start_positions.tolist() == [13, 13, 0], "c waits for a state that is not saved"
    assert scheduler.check_integrity() == []


@pytest.mark.parametrize("overlap", [True, False])
def test_two_equal_prompts_save_one_state(overlap: bool) -> None:
    harness = EngineHarness(FAKE, overlap=overlap, prefix_wait_steps=0)
    harness.submit(make_request("a", 13, 9), make_request("b", 13, 9))
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert harness.cache.checkpoints.counts().cached == 2  # of the prompt and of the end
    harness.close()


def test_drafts_need_room_for_a_state_in_their_share_of_the_pool() -> None:
    for num_checkpoints, caches, expected in ((0, True, False), (3, True, False), (4, True, True), (4, False, False)):
        config = CacheConfig(
            num_blocks=4, has_state=True, num_state_checkpoints=num_checkpoints, enable_prefix_caching=caches
        )
        assert can_save_drafts(config) is expected
