"""FakeStates: a row continues only the state of exactly the tokens before it; checkpoints are copies."""

from collections.abc import Sequence

import numpy as np
import pytest

from chairlift.engine.runner.fake_states import ZERO_STATE, FakeStates, advance_state
from chairlift.engine.step_plan import NewSequence, StepPlan
from support_engine import make_request

TOKENS = (5, 6, 7, 8, 9, 10)
PARAMS = make_request("a", 3, 6).params


def plan_of(
    *slots: int, new: Sequence[int] = (), released: tuple[int, ...] = (), loads: Sequence[tuple[int, int]] = (),
    saves: Sequence[tuple[int, int, int]] = (),
) -> StepPlan:  # fmt: skip
    """Make a plan with a row of one token in each slot; only what FakeStates reads is right."""
    rows = np.array(slots, np.int32)
    return StepPlan(
        step_id=0, released_slots=released, new_sequences=tuple(NewSequence(slot, TOKENS, 0, PARAMS) for slot in new),
        slots=rows, num_new_tokens=np.ones_like(rows), start_positions=rows, new_blocks=np.empty((0, 4), np.int32),
        input_ids=rows, sample_rows=rows, state_loads=np.array(loads, np.int32).reshape(-1, 2),
        state_saves=np.array(saves, np.int32).reshape(-1, 3),
    )  # fmt: skip


def started(num_checkpoints: int = 2) -> FakeStates:
    """Return states with a new sequence in slot 0."""
    states = FakeStates(num_checkpoints)
    states.apply(plan_of(0, new=[0]))
    return states


def test_a_state_depends_on_every_token_and_its_position() -> None:
    whole = advance_state(ZERO_STATE, TOKENS)
    assert advance_state(advance_state(ZERO_STATE, TOKENS[:2]), TOKENS[2:]) == whole and whole[0] == 6
    others = [(5, 6, 7, 8, 9, 11), (4, *TOKENS[1:]), (6, 5, *TOKENS[2:])]
    assert whole not in [advance_state(ZERO_STATE, other) for other in others]
    assert advance_state((1, 0), (5,)) != advance_state((2, 0), (5,))


def test_chunks_give_the_state_of_the_whole() -> None:
    states = started()
    for start, end in ((0, 2), (2, 3), (3, 6)):
        assert states.advance(0, start, TOKENS[start:end], {})[-1] == advance_state(ZERO_STATE, TOKENS[:end])
    assert states.advance(0, 6, [77], {})[-1] == advance_state(ZERO_STATE, [*TOKENS, 77])


@pytest.mark.parametrize("start", [1, 3])
def test_a_row_that_skips_or_repeats_a_token_is_a_breach(start: int) -> None:
    states = started()
    states.advance(0, 0, TOKENS[:2], {})
    with pytest.raises(AssertionError, match=f"slot 0 has the state .* at position {start}, not"):
        states.advance(0, start, TOKENS[start : start + 1], {})


def test_a_new_sequence_has_no_state_and_a_row_at_position_0_needs_none() -> None:
    states = started()
    states.advance(0, 0, TOKENS[:4], {})
    states.apply(plan_of(0, new=[0]))
    with pytest.raises(AssertionError, match="slot 0 has the state None at position 4"):
        states.advance(0, 4, TOKENS[4:], {})
    assert states.advance(0, 0, TOKENS, {})[-1] == advance_state(ZERO_STATE, TOKENS)


def test_a_loaded_checkpoint_is_continued_where_it_was_saved() -> None:
    states = started()
    states.advance(0, 0, TOKENS[:5], {2: 0, 4: 1})
    states.apply(plan_of(3, new=[3], loads=[(1, 3)]))
    assert states.advance(3, 4, TOKENS[4:], {})[-1] == advance_state(ZERO_STATE, TOKENS)
    states.apply(plan_of(1, new=[1], loads=[(0, 1)]))
    with pytest.raises(AssertionError, match=r"slot 1 has the state .* at position 4"):
        states.advance(1, 4, TOKENS[4:], {})


def test_a_checkpoint_is_a_copy() -> None:
    states = started()
    states.advance(0, 0, TOKENS[:2], {2: 1})
    states.advance(0, 2, TOKENS[2:], {})
    states.apply(plan_of(0, new=[0], loads=[(1, 0)]))
    assert states.advance(0, 2, TOKENS[2:3], {})[-1][0] == 3


def test_tokens_of_another_sequence_are_a_breach() -> None:
    with pytest.raises(AssertionError, match="slot 0 gets tokens of another sequence"):
        started().advance(0, 0, (5, 6, 8), {})


def test_a_failed_plan_leaves_neither_states_nor_checkpoints() -> None:
    states = started()
    states.advance(0, 0, TOKENS[:2], {2: 0})
    states.lose(plan_of(0, saves=[(0, 1, 0)]))
    with pytest.raises(AssertionError, match="slot 0 has the state None"):
        states.advance(0, 2, TOKENS[2:], {})
    with pytest.raises(AssertionError, match="checkpoint 0 was never saved"):
        states.apply(plan_of(0, new=[0], loads=[(0, 0)]))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(0, loads=[(1, 0)]), "checkpoint 1 was never saved"),
        (plan_of(0, loads=[(0, 0), (0, 0)]), "a slot is loaded twice"),
        (plan_of(0, loads=[(0, 1)]), "slot 1, which is not in the step"),
        (plan_of(0, saves=[(0, 1, 1), (0, 2, 1)]), "a checkpoint is saved twice"),
        (plan_of(0, saves=[(0, 1, 2)]), "checkpoint 2 does not exist"),
        (plan_of(0, loads=[(0, 0)], saves=[(0, 1, 0)]), "loads and saves the same checkpoint"),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused(plan: StepPlan, message: str) -> None:
    states = started()
    states.advance(0, 0, TOKENS[:2], {2: 0})
    with pytest.raises(AssertionError, match=message):
        states.apply(plan)


def test_a_state_is_saved_only_after_one_of_the_rows_tokens() -> None:
    with pytest.raises(AssertionError, match=r"states of a row after \[3\] tokens"):
        started().advance(0, 0, TOKENS[:2], {3: 0})


def test_a_released_slot_is_forgotten() -> None:
    states = started()
    states.apply(plan_of(released=(0, 5)))
    with pytest.raises(KeyError):
        states.advance(0, 0, TOKENS, {})
