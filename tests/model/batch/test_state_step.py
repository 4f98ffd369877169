"""StateStep: entries of slots and checkpoints, fresh rows, and saves that a row cannot have."""

import numpy as np
import pytest
import torch

from chairlift.model.batch.state_step import StateStep

CPU = torch.device("cpu")


def int32(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


def make(saves: np.ndarray, slots: np.ndarray | None = None) -> StateStep:
    return StateStep.of(
        int32(2, 0) if slots is None else slots, int32(1, 5), int32(7, 0), int32([3, 2]), saves, num_slots=10,
        device=CPU,
    )  # fmt: skip


def test_checkpoints_are_entries_behind_the_slots() -> None:
    step = make(int32([1, 5, 0], [1, 2, 4], [0, 1, 1]))
    assert step.slots.tolist() == [2, 0]
    assert step.is_fresh.tolist() == [False, True]
    assert step.starts.tolist() == [7, 0] and step.starts.dtype == torch.int32
    assert step.counts == (1, 5)
    assert step.loads.tolist() == [[13, 2]]
    assert step.saves.tolist() == [[0, 1, 11], [1, 2, 14], [1, 5, 10]]
    assert step.token_bounds.tolist() == [0, 1, 6]
    assert step.save_bounds.tolist() == [0, 1, 3]
    assert step.row_saves.tolist() == [[1, 11], [2, 14], [5, 10]]
    assert step.save_positions.tolist() == [8, 2, 5]
    assert step.loads.dtype == step.saves.dtype == np.int32
    assert {each.dtype for each in (step.token_bounds, step.save_bounds, step.row_saves)} == {torch.int32}


@pytest.mark.parametrize("save", [(2, 1, 0), (-1, 1, 0), (1, 0, 0), (1, 6, 0), (0, 2, 0)])
def test_a_save_that_no_row_has_is_refused(save: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError, match=r"a state .* saved"):
        make(int32(save))


def test_two_rows_of_a_slot_are_refused() -> None:
    with pytest.raises(AssertionError, match="the same slot"):
        make(np.empty((0, 3), np.int32), int32(1, 1))
