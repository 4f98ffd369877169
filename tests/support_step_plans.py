"""plan_of: a StepPlan of a few rows."""

from dataclasses import replace

import numpy as np

from chairlift.engine.step_plan import StepPlan


def array(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


def plan_of(rows: list[tuple[int, int, list[int]]], **more: object) -> StepPlan:
    """Make a plan from rows (slot, start position, input ids)."""
    made = StepPlan(
        step_id=0, released_slots=(), new_sequences=(),
        slots=array(*(slot for slot, _, _ in rows)),
        num_new_tokens=array(*(len(ids) for _, _, ids in rows)),
        start_positions=array(*(start for _, start, _ in rows)),
        new_blocks=np.empty((0, 4), np.int32),
        input_ids=array(*(token for _, _, ids in rows for token in ids)),
        sample_rows=np.arange(len(rows), dtype=np.int32),
    )  # fmt: skip
    return replace(made, **more)


def plan(*rows: tuple[int, int]) -> StepPlan:
    """Return a plan of rows (start, new tokens)."""
    starts, counts = zip(*rows, strict=True)
    return StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=np.arange(len(rows), dtype=np.int32),
        num_new_tokens=np.array(counts, np.int32), start_positions=np.array(starts, np.int32),
        new_blocks=np.empty((0, 4), np.int32), input_ids=np.zeros(sum(counts), np.int32),
        sample_rows=np.empty(0, np.int32),
    )  # fmt: skip
