"""Plans of the largest steps: a runner that has computed them has threads, memory and kernels for every other one."""

from collections.abc import Iterator, Sequence

import numpy as np

from chairlift.core.sampling import SamplingParams
from chairlift.engine.plan import NewSequence, StepPlan

DECODE_CONTEXT = 128
"""Tokens of each sequence of the step that only generates: enough to touch everything, few enough to be quick."""


def largest_plans(
    max_batch_tokens: int, max_running_requests: int, max_model_len: int, block_size: int, num_groups: int
) -> Iterator[StepPlan]:
    """Yield a step of max_batch_tokens prompt tokens, and one in which max_running_requests sequences generate.

    All rows name block 0 only, so they fit any pool; whoever runs them must not write. Every row is drawn from, with
    temperature 1.
    """
    rows: list[tuple[int, int]] = []
    left = max_batch_tokens
    while left and len(rows) < max_running_requests:
        rows.append((0, min(left, max_model_len)))
        left -= rows[-1][1]
    yield _plan(0, sorted(rows, key=lambda row: row[1] != 1), block_size, num_groups)
    generating = min(max_running_requests, max_batch_tokens)
    yield _plan(1, [(min(DECODE_CONTEXT, max_model_len) - 1, 1)] * generating, block_size, num_groups)


def _plan(step_id: int, rows: Sequence[tuple[int, int]], block_size: int, num_groups: int) -> StepPlan:
    """Make the plan of rows (start, new tokens); those with one token come first."""
    params = SamplingParams(temperature=1.0).resolved({}, max_tokens=1, seed=0)
    new_blocks = [
        (slot, group, index, 0)
        for slot, (start, count) in enumerate(rows)
        for group in range(num_groups)
        for index in range(-(-(start + count) // block_size))
    ]
    starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return StepPlan(
        step_id=step_id,
        released=(),
        admitted=tuple(
            NewSequence(slot=slot, token_ids=(0,) * (start + count), num_prior_outputs=0, params=params)
            for slot, (start, count) in enumerate(rows)
        ),
        slots=np.arange(len(rows), dtype=np.int32),
        num_new_tokens=counts,
        start_positions=starts,
        new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4),
        input_ids=np.zeros(int(counts.sum()), np.int32),
        sample_rows=np.arange(len(rows), dtype=np.int32),
    )
