"""Plans of the steps that a runner should have computed once, to have threads, memory and kernels for every other."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from chairlift.core.sampling import SamplingParams
from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.layers.onednn import TILE_ROWS

DECODE_CONTEXT = 128
"""Tokens of each sequence of a step that only generates, and of the chunk: enough to touch everything, and quick."""

DRAWS = tuple(
    params.with_defaults({}, max_tokens=1, seed=0)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01))
)
"""Taken in turn by the rows: a draw without an order of tokens, and one with."""

Rows = Sequence[tuple[int, int]]


def warmup_plans(
    max_batch_tokens: int, max_running_requests: int, max_model_len: int, block_size: int, num_groups: int,
    padded: Callable[[int], int] = int,
) -> Iterator[StepPlan]:  # fmt: skip
    """Yield the steps to compute.

    They are: max_batch_tokens prompt tokens; max_running_requests sequences that generate; a chunk behind what was
    computed before; and, where steps are padded to a few sizes, one of each size, of sequences that generate as far as
    there are seats. All rows name block 0 only, so they fit any pool; whoever runs them must not write.
    """
    steps: list[Rows] = [_prompts(max_batch_tokens, max_running_requests, max_model_len)]
    generating, context = min(max_running_requests, max_batch_tokens), min(DECODE_CONTEXT, max_model_len) - 1
    steps.append([(context, 1)] * generating)
    if (chunk := min(max_batch_tokens, max_model_len // 2, DECODE_CONTEXT)) > 1:
        steps.append([(min(DECODE_CONTEXT, max_model_len - chunk), chunk)])
    counts = range(1, min(max_batch_tokens, TILE_ROWS) + 1)
    is_padded = any(padded(count) > count for count in counts)
    done = {padded(generating), padded(max_batch_tokens)}
    for size in sorted({padded(count) for count in counts} - done) if is_padded else ():
        tokens = min(size, max_batch_tokens)
        steps.append([(context, 1)] * tokens if tokens <= generating else _prompts(tokens, 1, max_model_len))
    for step_id, rows in enumerate(steps):
        yield _plan(step_id, rows, block_size, num_groups)


def _prompts(tokens: int, seats: int, max_model_len: int) -> Rows:
    """Share so many tokens among so few prompts as can be; those of one token stand first."""
    rows: list[tuple[int, int]] = []
    while tokens and len(rows) < seats:
        rows.append((0, min(tokens, max_model_len)))
        tokens -= rows[-1][1]
    return sorted(rows, key=lambda row: row[1] != 1)


def _plan(step_id: int, rows: Rows, block_size: int, num_groups: int) -> StepPlan:
    """Make the plan of rows (start, new tokens); those with one token come first."""
    new_blocks = [
        (slot, group, index, 0)
        for slot, (start, count) in enumerate(rows)
        for group in range(num_groups)
        for index in range(-(-(start + count) // block_size))
    ]
    starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return StepPlan(
        step_id=step_id,
        released_slots=(),
        new_sequences=tuple(
            NewSequence(slot=slot, token_ids=(0,) * (start + count), num_output_tokens=0, params=DRAWS[slot % 2])
            for slot, (start, count) in enumerate(rows)
        ),
        slots=np.arange(len(rows), dtype=np.int32),
        num_new_tokens=counts,
        start_positions=starts,
        new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4),
        input_ids=np.zeros(int(counts.sum()), np.int32),
        sample_rows=np.arange(len(rows), dtype=np.int32),
    )
