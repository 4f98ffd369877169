"""A plan counts its rows and tokens, cannot be changed, and needs no copies."""

import numpy as np
import pytest

from chairlift.engine.plan import StepPlan


def plan() -> StepPlan:
    rows = np.array([2, 0], np.int32)
    return StepPlan(
        step_id=3, released=(), admitted=(), slots=rows, num_new_tokens=np.array([1, 3], np.int32),
        start_positions=rows, new_blocks=np.empty((0, 4), np.int32), input_ids=np.arange(4, dtype=np.int32),
        sample_rows=np.array([1], np.int32),
    )  # fmt: skip


def test_a_plan_counts_its_rows_and_tokens() -> None:
    assert (plan().num_rows, plan().num_tokens) == (2, 4)


def test_a_plan_without_copies_has_an_empty_list_of_pairs() -> None:
    assert plan().copies.shape == (0, 2) and plan().copies.dtype == np.int32


def test_a_plan_is_frozen() -> None:
    with pytest.raises(AttributeError):
        plan().step_id = 4  # type: ignore[misc]
