"""StepPlan: counts its rows and tokens, cannot be changed, and needs no copies."""

import numpy as np
import pytest

from chairlift.engine.step_plan import NO_DRAFT, StepPlan


def plan() -> StepPlan:
    rows = np.array([2, 0], np.int32)
    return StepPlan(
        step_id=3, released_slots=(), new_sequences=(), slots=rows, num_new_tokens=np.array([1, 3], np.int32),
        start_positions=rows, new_blocks=np.empty((0, 4), np.int32), input_ids=np.arange(4, dtype=np.int32),
        sample_rows=np.array([1], np.int32),
    )  # fmt: skip


def test_a_plan_counts_its_rows_and_tokens() -> None:
    assert (plan().num_rows, plan().num_tokens) == (2, 4)


def test_a_plan_counts_what_its_rows_see() -> None:
    """Row 0 has token 2 and sees 3; row 1 has tokens 0 to 2, which see 1, 2 and 3."""
    assert plan().num_context_tokens == 3 + 3
    assert plan().num_prefill_pairs == 1 + 2 + 3


def test_pairs_of_long_prompts_do_not_overflow() -> None:
    rows = np.array([0], np.int32)
    long = StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=rows, num_new_tokens=np.array([100_000], np.int32),
        start_positions=np.array([1_000_000], np.int32), new_blocks=np.empty((0, 4), np.int32),
        input_ids=np.zeros(100_000, np.int32), sample_rows=rows,
    )  # fmt: skip
    assert long.num_prefill_pairs == 100_000 * 1_000_000 + 100_000 * 100_001 // 2


def test_a_plan_without_copies_has_an_empty_list_of_pairs() -> None:
    assert plan().block_copies.shape == (0, 2) and plan().block_copies.dtype == np.int32


def test_a_plan_without_states_has_empty_lists_of_loads_and_saves() -> None:
    assert plan().state_loads.shape == (0, 2) and plan().state_loads.dtype == np.int32
    assert plan().state_saves.shape == (0, 3) and plan().state_saves.dtype == np.int32


def test_without_drafts_each_sample_row_is_sampled_after_its_last_token() -> None:
    assert plan().num_samples == 1
    assert plan().sample_tokens.tolist() == [3] and plan().sample_bounds.tolist() == [0, 1]
    assert plan().sample_slots.tolist() == [0]


def test_a_row_with_drafts_is_sampled_after_its_known_token_and_each_draft() -> None:
    drafted = StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=np.array([4, 9, 2, 5], np.int32),
        num_new_tokens=np.array([1, 4, 3, 2], np.int32), start_positions=np.zeros(4, np.int32),
        new_blocks=np.empty((0, 4), np.int32), input_ids=np.arange(10, 20, dtype=np.int32),
        sample_rows=np.array([0, 2, 3], np.int32), num_drafts=np.array([0, 2, 1], np.int32),
    )  # fmt: skip
    assert drafted.num_samples == 6 and drafted.sample_bounds.tolist() == [0, 1, 4, 6]
    assert drafted.sample_tokens.tolist() == [0, 5, 6, 7, 8, 9] and drafted.sample_tokens.dtype == np.int32
    assert drafted.sample_slots.tolist() == [4, 2, 2, 2, 5, 5]
    assert drafted.next_drafts.tolist() == [NO_DRAFT, 16, 17, NO_DRAFT, 19, NO_DRAFT]


def test_a_plan_is_frozen() -> None:
    with pytest.raises(AttributeError):
        plan().step_id = 4  # type: ignore[misc]
