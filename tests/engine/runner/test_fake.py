"""FakeRunner detects a wrong block table, a block that was not computed and a shared block with other tokens."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import NonFiniteLogits, SamplingFailed
from chairlift.engine.runner.fake import FakeRunner, build
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens, unverified_token
from chairlift.engine.step_plan import LAST_SAMPLED, NewSequence, StepPlan, TokenMasks
from support_engine import make_request, make_result, make_scheduler

FAKE = FakeConfig(vocab_size=200, num_blocks=8, block_size=4)
GREEDY = make_request("a", 3, 6).params


def first_plan(token_ids: tuple[int, ...] = (1, 2, 3, 4, 5, 6), blocks: tuple[int, ...] = (3, 1)) -> StepPlan:
    """Make a plan that adds one sequence in slot 0 and computes its whole prompt."""
    ids = np.array(token_ids, np.int32)
    return StepPlan(
        step_id=0, released_slots=(), new_sequences=(NewSequence(0, token_ids, 0, GREEDY),),
        slots=np.array([0], np.int32),
        num_new_tokens=np.array([len(ids)], np.int32), start_positions=np.array([0], np.int32),
        new_blocks=np.array([(0, 0, index, block) for index, block in enumerate(blocks)], np.int32),
        input_ids=ids, sample_rows=np.array([0], np.int32),
    )  # fmt: skip


def next_plan(start: int, token: int = LAST_SAMPLED, step_id: int = 1) -> StepPlan:
    one = np.array([1], np.int32)
    return StepPlan(
        step_id=step_id, released_slots=(), new_sequences=(), slots=one - 1, num_new_tokens=one,
        start_positions=np.array([start], np.int32), new_blocks=np.empty((0, 4), np.int32),
        input_ids=np.array([token], np.int32), sample_rows=one - 1,
    )  # fmt: skip


def run(runner: FakeRunner, plan: StepPlan) -> list[int]:
    runner.launch(plan)
    return runner.collect().tokens.tolist()


def test_tokens_follow_from_what_stands_in_the_cache() -> None:
    runner = FakeRunner(FAKE)
    expected = expected_tokens([1, 2, 3, 4, 5, 6], GREEDY, FAKE)
    assert run(runner, first_plan()) == expected[:1]
    assert run(runner, next_plan(6)) == expected[1:2]


def test_a_block_that_was_overwritten_gives_another_token() -> None:
    runner = FakeRunner(FAKE)
    run(runner, first_plan())
    runner._memory[0, 3, 2] = 99
    assert run(runner, next_plan(6)) != expected_tokens([1, 2, 3, 4, 5, 6], GREEDY, FAKE)[1:2]


def test_a_position_that_was_never_computed_is_a_breach() -> None:
    runner = FakeRunner(FAKE)
    run(runner, first_plan())
    with pytest.raises(AssertionError, match="position 6 of group 0 was never computed"):
        run(runner, next_plan(7))


def test_a_block_outside_the_pool_is_a_breach() -> None:
    with pytest.raises(AssertionError, match="block 8 does not exist"):
        FakeRunner(FAKE).launch(first_plan(blocks=(3, 8)))


def test_groups_that_disagree_are_a_breach() -> None:
    fake = replace(FAKE, windows=(None, 5))
    scheduler = make_scheduler(num_blocks=8, windows=(None, 5))
    scheduler.add_request(make_request("a", 6, 6), 0.0)
    plan = scheduler.schedule(0.0)
    runner = FakeRunner(fake)
    assert plan is not None
    runner.launch(plan)
    scheduler.commit(make_result(plan, runner.collect().tokens.tolist()), 0.0)
    runner._memory[1][runner._memory[1] == 6] = 60
    plan = scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(AssertionError, match="groups disagree at position 5"):
        runner.launch(plan)


def test_only_the_last_id_may_be_unknown_and_only_after_a_sample() -> None:
    with pytest.raises(AssertionError, match="only the last id can be unknown"):
        FakeRunner(FAKE).launch(first_plan((1, LAST_SAMPLED, 3)))
    with pytest.raises(AssertionError, match="no token was sampled"):
        FakeRunner(FAKE).launch(first_plan((1, 2, LAST_SAMPLED)))


def test_a_released_slot_is_forgotten() -> None:
    runner = FakeRunner(FAKE)
    run(runner, first_plan())
    with pytest.raises(KeyError):
        runner.launch(replace(next_plan(6), released_slots=(0, 7)))


def test_poison_fails_the_step_also_when_it_is_the_token_sampled_last() -> None:
    token = expected_tokens([1, 2, 3, 4, 5, 6], GREEDY, FAKE)[0]
    runner = FakeRunner(replace(FAKE, poison=token))
    assert run(runner, first_plan()) == [token]
    with pytest.raises(ValueError, match=f"cannot read token {token}"):
        runner.launch(next_plan(6))


def test_a_nan_token_fails_its_row() -> None:
    runner = FakeRunner(replace(FAKE, nan=4))
    runner.launch(first_plan())
    [(row, error)] = runner.collect().row_errors
    assert row == 0 and isinstance(error, NonFiniteLogits)


def test_rows_fail_where_row_errors_says() -> None:
    error = SamplingFailed("chosen to fail")
    runner = FakeRunner(FAKE, row_errors=lambda plan: [(0, error)])
    runner.launch(first_plan())
    assert runner.collect().row_errors == ((0, error),)


@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_a_hook_fails_the_step_and_the_ones_launched_after_it(stage: str) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        if (plan.step_id, at) == (1, stage):
            raise RuntimeError("chosen to fail")

    runner = FakeRunner(FAKE, hook=hook)
    runner.launch(first_plan())
    if stage == "launch":
        with pytest.raises(RuntimeError, match="chosen to fail"):
            runner.launch(next_plan(6))
        assert runner.collect().step_id == 0
    else:
        for plan in (next_plan(6), next_plan(7, step_id=2)):
            runner.launch(plan)
        assert runner.collect().step_id == 0
        with pytest.raises(RuntimeError, match="chosen to fail"):
            runner.collect()
    with pytest.raises(IndexError):
        runner.collect()


def test_masks_that_came_before_a_launch_that_fails_are_gone() -> None:
    """They must not apply to the next plan with this step id."""
    raised = iter([SamplingFailed("once")])

    def hook(plan: StepPlan, stage: str) -> None:
        if stage == "launch" and (error := next(raised, None)):
            raise error

    runner = FakeRunner(FAKE, hook=hook)
    sample_index = np.array([0], np.int32)
    plan = replace(first_plan(), masked_samples=sample_index)
    runner.supply_masks(plan.step_id, TokenMasks(sample_index, np.zeros((1, 7), np.int32)))
    with pytest.raises(SamplingFailed):
        runner.launch(plan)
    runner.launch(plan)
    runner.supply_masks(plan.step_id, TokenMasks(sample_index, np.array([[1 << 9, 0, 0, 0, 0, 0, 0]], np.int32)))
    assert runner.collect().tokens.tolist() == [9]


def test_a_step_takes_the_configured_seconds() -> None:
    clock = FakeClock()
    runner = FakeRunner(replace(FAKE, seconds_per_step=0.5, seconds_per_token=0.25), clock=clock)
    runner.launch(first_plan())
    assert clock.now() == 2.0


def test_a_step_that_is_timed_has_passed_when_it_is_collected() -> None:
    clock = FakeClock(5.0)
    seconds = iter([2.0, 3.0, 1.0])
    runner = FakeRunner(FAKE, clock=clock, step_time=lambda plan: next(seconds))
    runner.launch(first_plan())
    clock.advance(0.5)
    runner.launch(next_plan(6))
    assert clock.now() == 5.5, "two launches are in flight and none was collected"
    runner.collect()
    assert clock.now() == 7.0
    runner.collect()
    assert clock.now() == 10.0, "the second step began when the first ended"
    clock.advance(4.0)
    runner.launch(next_plan(7, step_id=2))
    runner.collect()
    assert clock.now() == 15.0, "an idle machine begins at once"


def test_timed_steps_that_are_void_take_no_more_time() -> None:
    def fail(plan: StepPlan, stage: str) -> None:
        if stage == "collect" and plan.step_id == 0:
            raise RuntimeError("chosen to fail")

    clock, seconds = FakeClock(), iter([10.0, 10.0, 4.0])
    runner = FakeRunner(FAKE, clock=clock, hook=fail, step_time=lambda plan: next(seconds))
    runner.launch(first_plan())
    runner.launch(next_plan(6))
    with pytest.raises(RuntimeError, match="chosen to fail"):
        runner.collect()
    runner.launch(replace(first_plan(), step_id=2))
    runner.collect()
    assert clock.now() == 14.0


def test_logprobs_come_when_a_request_asks_for_them() -> None:
    runner = FakeRunner(FAKE)
    plan = first_plan()
    new_sequence = replace(plan.new_sequences[0], params=replace(GREEDY, logprobs=0))
    runner.launch(replace(plan, new_sequences=(new_sequence,)))
    result = runner.collect()
    assert [entry.token_id for entry in result.logprobs if entry] == result.tokens.tolist()
    runner.launch(first_plan())
    assert runner.collect().logprobs == ()


def test_it_says_what_it_pretends_to_be_and_is_built_from_bytes() -> None:
    runner = build(msgspec.msgpack.encode(FAKE))
    info = runner.start()
    assert (info.vocab_size, info.num_blocks, info.block_size, info.windows) == (200, 8, 4, (None,))
    runner.stop()
    assert runner.started and runner.stopped


def test_without_verifying_nothing_is_kept() -> None:
    runner = FakeRunner(replace(FAKE, verify=False))
    assert len(run(runner, first_plan(blocks=()))) == 1


@pytest.mark.parametrize("with_row_errors", [False, True], ids=["plain", "with row errors"])
def test_without_verifying_a_token_hangs_on_prompt_seed_and_position_alone(with_row_errors: bool) -> None:
    fake = replace(FAKE, verify=False)
    plan = first_plan(blocks=())
    new_sequence = plan.new_sequences[0]
    runner = FakeRunner(fake, row_errors=(lambda plan: []) if with_row_errors else None)
    first = run(runner, plan)
    assert first == [unverified_token(new_sequence.token_ids, new_sequence.params, len(new_sequence.token_ids), fake)]
    second = run(runner, next_plan(6, first[0]))
    assert (
        second
        == [unverified_token(new_sequence.token_ids, new_sequence.params, len(new_sequence.token_ids) + 1, fake)]
        != first
    )
    returned = replace(new_sequence, token_ids=(*new_sequence.token_ids, *first), num_output_tokens=1)
    again = FakeRunner(fake, row_errors=(lambda plan: []) if with_row_errors else None)
    run(again, replace(plan, new_sequences=(returned,)))
    assert run(again, next_plan(6, first[0])) == second, "also after a preemption"


def test_released_blocks_lose_their_contents() -> None:
    runner = FakeRunner(FakeConfig(num_blocks=6, block_size=2))
    runner._memory[:] = 5
    runner._memory[:, 5] = 7
    assert runner.release_blocks(4, [(5, 1)]) == 2
    assert (runner._memory[:, [0, 2, 3]] == 5).all() and (runner._memory[:, 1] == 7).all()
    assert (runner._memory[:, 4:] != 5).all()


# -- states ------------------------------------------------------------------------------------------------------------

STATES = replace(FAKE, has_state=True, num_state_checkpoints=2)


def with_states(
    plan: StepPlan, loads: tuple[tuple[int, int], ...] = (), saves: tuple[tuple[int, int, int], ...] = ()
) -> StepPlan:
    return replace(
        plan, state_loads=np.array(loads, np.int32).reshape(-1, 2), state_saves=np.array(saves, np.int32).reshape(-1, 3)
    )


def resumed_plan(start: int, slot: int) -> StepPlan:
    """Make a plan that adds the sequence of first_plan in another slot and computes its prompt from a position on."""
    plan, ids = first_plan(), np.arange(start + 1, 7, dtype=np.int32)
    return replace(
        plan, step_id=1, new_sequences=(replace(plan.new_sequences[0], slot=slot),), slots=np.array([slot], np.int32),
        num_new_tokens=np.array([len(ids)], np.int32), start_positions=np.array([start], np.int32),
        new_blocks=plan.new_blocks + np.array([slot, 0, 0, 0], np.int32), input_ids=ids,
    )  # fmt: skip


def test_a_fake_with_states_says_so() -> None:
    info = FakeRunner(STATES).start()
    assert info.has_state and info.num_state_checkpoints == 2 and info.state_bytes > 0
    plain = FakeRunner(FAKE).start()
    assert not plain.has_state and plain.num_state_checkpoints == plain.state_bytes == 0


def test_a_sequence_that_begins_with_a_saved_state_gets_the_tokens_of_one_that_computes_it() -> None:
    runner = FakeRunner(STATES)
    expected = expected_tokens([1, 2, 3, 4, 5, 6], GREEDY, STATES)
    assert run(runner, with_states(first_plan(), saves=((0, 2, 0), (0, 4, 1)))) == expected[:1]
    assert run(runner, with_states(resumed_plan(4, slot=3), loads=((1, 3),))) == expected[:1]
    assert run(runner, next_plan(6)) == expected[1:2], "slot 0 has its own state still"


def test_a_row_that_continues_another_state_is_a_breach() -> None:
    runner = FakeRunner(STATES)
    run(runner, with_states(first_plan(), saves=((0, 2, 0), (0, 4, 1))))
    with pytest.raises(AssertionError, match="slot 3 has the state None at position 4"):
        runner.launch(resumed_plan(4, slot=3))
    with pytest.raises(AssertionError, match=r"slot 3 has the state \(2, .* at position 4"):
        runner.launch(with_states(resumed_plan(4, slot=3), loads=((0, 3),)))


@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_after_a_step_that_failed_neither_its_slots_nor_its_checkpoints_have_a_state(stage: str) -> None:
    def hook(plan: StepPlan, at: str) -> None:
        if (plan.step_id, at) == (1, stage):
            raise RuntimeError("chosen to fail")

    runner = FakeRunner(STATES, hook=hook)
    run(runner, with_states(first_plan(), saves=((0, 4, 0),)))
    with pytest.raises(RuntimeError, match="chosen to fail"):
        run(runner, with_states(next_plan(6), saves=((0, 1, 1),)))
    with pytest.raises(AssertionError, match="slot 0 has the state None at position 6"):
        runner.launch(next_plan(6, step_id=2))
    with pytest.raises(AssertionError, match="checkpoint 1 was never saved"):
        runner.launch(with_states(replace(resumed_plan(4, slot=3), step_id=3), loads=((1, 3),)))
    expected = expected_tokens([1, 2, 3, 4, 5, 6], GREEDY, STATES)
    assert run(runner, with_states(replace(resumed_plan(4, slot=3), step_id=4), loads=((0, 3),))) == expected[:1]
