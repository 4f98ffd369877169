"""warmup_plans, peak_plans: the steps that a runner computes once, to prepare for all others or to measure memory."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.layers.onednn_linear import TILE_ROWS

DECODE_CONTEXT = 128
"""Context tokens of each sequence of a decode step, and tokens of the chunk: enough to run all code, and quick."""

SAMPLING_PARAMS = tuple(
    params.with_defaults({}, max_tokens=1, seed=0)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01))
)
"""Sampling parameters that rows use in turn: one set needs no order of tokens, the other needs it."""

HOST_SAMPLING_PARAMS = (
    SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1).with_defaults(
        {}, max_tokens=1, seed=0
    ),
)
"""Sampling parameters of rows that need the most memory: other logits than the model's, and their logprobs."""

Rows = Sequence[tuple[int, int]]


def warmup_plans(
    max_batch_tokens: int, max_running_requests: int, max_model_len: int, block_size: int, num_groups: int,
    padded: Callable[[int], int] = int,
) -> Iterator[StepPlan]:  # fmt: skip
    """Yield the steps to compute.

    The steps are: max_batch_tokens prompt tokens; max_running_requests decoding sequences; a prefill chunk after
    computed tokens; and, where steps are padded to a few sizes, one step of each size, of decoding sequences as far as
    the slots reach. All rows use block 0 only, so they fit any pool; the runner must not write to the cache.
    """
    steps: list[Rows] = [_prompts(max_batch_tokens, max_running_requests, max_model_len)]
    num_decodes, context = min(max_running_requests, max_batch_tokens), min(DECODE_CONTEXT, max_model_len) - 1
    steps.append([(context, 1)] * num_decodes)
    if (chunk := min(max_batch_tokens, max_model_len // 2, DECODE_CONTEXT)) > 1:
        steps.append([(min(DECODE_CONTEXT, max_model_len - chunk), chunk)])
    counts = range(1, min(max_batch_tokens, TILE_ROWS) + 1)
    is_padded = any(padded(count) > count for count in counts)
    done = {padded(num_decodes), padded(max_batch_tokens)}
    for size in sorted({padded(count) for count in counts} - done) if is_padded else ():
        tokens = min(size, max_batch_tokens)
        steps.append([(context, 1)] * tokens if tokens <= num_decodes else _prompts(tokens, 1, max_model_len))
    for step_id, rows in enumerate(steps):
        yield _plan(step_id, rows, block_size, num_groups)


def peak_plans(
    max_batch_tokens: int, max_running_requests: int, max_model_len: int, block_size: int, num_groups: int
) -> Iterator[StepPlan]:
    """Yield the steps that need most memory: of the most rows with the longest contexts, and of the most prompt tokens.

    First comes the largest decode step as a CUDA graph may have it, then the same with rows that a device cannot sample
    alone; a chunk at the end of the longest prompt comes last. All rows use block 0 only.
    """
    num_decodes, chunk = min(max_running_requests, max_batch_tokens), min(max_batch_tokens, max_model_len)
    decodes: Rows = [(max_model_len - 1, 1)] * num_decodes
    steps: list[tuple[Rows, Sequence[SamplingParams]]] = [
        (decodes, SAMPLING_PARAMS),
        (decodes, HOST_SAMPLING_PARAMS),
        (_prompts(max_batch_tokens, max_running_requests, max_model_len), SAMPLING_PARAMS),
        ([(max_model_len - chunk, chunk)], SAMPLING_PARAMS),
    ]
    for step_id, (rows, params) in enumerate(steps):
        yield _plan(step_id, rows, block_size, num_groups, params)


def _prompts(tokens: int, max_slots: int, max_model_len: int) -> Rows:
    """Split tokens among as few prompts as possible, at most max_slots; prompts of one token come first."""
    rows: list[tuple[int, int]] = []
    while tokens and len(rows) < max_slots:
        rows.append((0, min(tokens, max_model_len)))
        tokens -= rows[-1][1]
    return sorted(rows, key=lambda row: row[1] != 1)


def _plan(
    step_id: int, rows: Rows, block_size: int, num_groups: int, params: Sequence[SamplingParams] = SAMPLING_PARAMS
) -> StepPlan:  # fmt: skip
    """Build the plan of rows (start, new tokens); rows with one token come first."""
    starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    num_blocks = np.repeat(-(-(starts + counts) // block_size), num_groups)  # of each slot in each group
    tables = np.repeat(np.arange(len(num_blocks), dtype=np.int32), num_blocks)
    firsts = np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
    new_blocks = np.zeros((len(tables), 4), np.int32)
    new_blocks[:, 0], new_blocks[:, 1] = np.divmod(tables, num_groups)
    new_blocks[:, 2] = np.arange(len(tables)) - firsts
    token_ids = (0,) * int((starts + counts).max())  # of the longest row; equal rows share it
    return StepPlan(
        step_id=step_id,
        released_slots=(),
        new_sequences=tuple(
            NewSequence(
                slot=slot, token_ids=token_ids[: start + count], num_output_tokens=0, params=params[slot % len(params)]
            )
            for slot, (start, count) in enumerate(rows)
        ),
        slots=np.arange(len(rows), dtype=np.int32),
        num_new_tokens=counts,
        start_positions=starts,
        new_blocks=new_blocks,
        input_ids=np.zeros(int(counts.sum()), np.int32),
        sample_rows=np.arange(len(rows), dtype=np.int32),
    )
