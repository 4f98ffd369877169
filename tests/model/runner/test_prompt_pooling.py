"""PromptPooling: which hidden states of a step belong to which prompt, row by row and chunk by chunk."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.runner.prompt_pooling import PromptPooling
from support_sampling import params, sequence


def plan_of(*rows: tuple[int, int, int]) -> StepPlan:
    """Make a plan of rows (slot, start, count)."""
    slots, starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    ids = np.zeros(int(counts.sum()), np.int32)
    return StepPlan(0, (), (), slots, counts, starts, np.empty((0, 4), np.int32), ids, np.empty(0, np.int32))


def pooled_sequence(slot: int, prompt: tuple[int, ...], pooling: str) -> NewSequence:
    return sequence(slot, params(), prompt, (), pooling=pooling)


def numbered(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return states [count, 2] whose first number is the index of the row."""
    return torch.arange(2 * count, dtype=dtype).reshape(count, 2) / 2


def as_dict(rows: Any) -> dict[int, list[float]]:
    return {row: states.tolist() for row, states in rows}


def test_each_row_pools_its_own_states_and_padding_is_not_read() -> None:
    pooling = PromptPooling()
    pooling.admit(pooled_sequence(0, (5, 6, 7), "mean"))
    pooling.admit(sequence(1, params(), (1, 2), ()))
    pooling.admit(pooled_sequence(2, (9, 8, 7, 6), "last"))
    hidden = torch.cat([numbered(6), torch.full((2, 2), torch.nan)])
    assert as_dict(pooling.compute(plan_of((1, 0, 1), (0, 0, 3), (2, 2, 2)), hidden)) == {1: [6.0, 7.5], 2: [5.0, 5.5]}


def test_last_waits_for_the_chunk_with_the_last_token() -> None:
    pooling = PromptPooling()
    pooling.admit(pooled_sequence(3, (5, 6, 7, 8), "last"))
    assert pooling.compute(plan_of((3, 0, 3)), numbered(3)) == ()
    assert as_dict(pooling.compute(plan_of((3, 3, 1)), numbered(1))) == {0: [0.0, 0.5]}


def test_a_released_or_replaced_slot_is_not_pooled() -> None:
    pooling = PromptPooling()
    pooling.admit(pooled_sequence(0, (5, 6), "mean"))
    pooling.admit(sequence(0, params(), (5, 6), ()))
    assert not pooling.has_requests
    pooling.admit(pooled_sequence(1, (5, 6), "mean"))
    pooling.release(1)
    pooling.release(7)
    assert pooling.compute(plan_of((0, 0, 2)), numbered(2)) == ()


def test_a_token_is_needed_unless_all_sampled_rows_request_states() -> None:
    pooling = PromptPooling()
    pooling.admit(pooled_sequence(0, (5, 6), "mean"))
    pooling.admit(pooled_sequence(1, (5, 6), "last"))
    pooling.admit(sequence(2, params(), (1, 2), ()))
    plan = plan_of((0, 0, 2), (1, 0, 2), (2, 0, 2))
    for rows, expected in (((), True), ((0, 1), True), ((1,), True), ((2,), False), ((0, 1, 2), False)):
        assert pooling.needs_no_token(replace(plan, sample_rows=np.array(rows, np.int32))) == expected


@pytest.mark.parametrize(
    ("stored", "computed"), [(torch.float64, np.float64), (torch.float32, np.float32), (torch.bfloat16, np.float32)]
)
def test_sums_are_float32_at_least(stored: torch.dtype, computed: type) -> None:
    pooling = PromptPooling()
    pooling.admit(pooled_sequence(0, tuple(range(600)), "mean"))
    ((_, states),) = pooling.compute(plan_of((0, 0, 600)), torch.ones(600, 4, dtype=stored))
    assert states.dtype == computed and states.tolist() == [600.0] * 4  # in bfloat16 a sum of ones ends at 256
