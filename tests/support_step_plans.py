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
