"""recurrence_kernel: the recurrence of layers with a state, token by token. TritonOps launches it.

A program holds some columns of one head's state in registers over all tokens of a row, and reads and writes them once.
Sums have one order, so outputs and states have the same bits however a prompt is cut, unlike those of the chunked form,
which is faster for long prompts.
"""

import triton
import triton.language as tl

from chairlift.model.kernels.cuda.kernel_variant import KernelVariant

COLUMNS = 8
"""Columns of a state in a program: 32 registers of each of 32 threads hold 128 rows of them."""

NUM_WARPS = 1


@triton.jit
def recurrence_kernel(
    query, key, value, decay, beta, states, out, slots, is_fresh, token_bounds, save_bounds, row_saves,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_DELTA_RULE: tl.constexpr,
):  # fmt: skip
    """Run one row and head, for COLUMNS columns of its state; see linear_recurrence.run_recurrence.

    Args:
        query, key: [T, HEADS, KEY_DIM], dense float32, as all numbers are; KEYS is KEY_DIM, rounded up to a power of 2.
        value, out: [T, HEADS, VALUE_DIM].
        decay, beta: [T, HEADS]; beta is read if HAS_DELTA_RULE.
        states: [entries, HEADS, KEY_DIM, VALUE_DIM].
        slots, is_fresh, token_bounds, save_bounds, row_saves: see StateStep.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    row_index, column = tl.arange(0, KEYS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    has_row, has_column = row_index < KEY_DIM, column < VALUE_DIM
    mask = has_row[:, None] & has_column[None, :]
    place = (head * KEY_DIM + row_index[:, None]) * VALUE_DIM + column[None, :]
    entry_size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    own = states + tl.load(slots + row) * entry_size + place
    state = tl.load(own, mask=mask, other=0.0)
    state = tl.where(tl.load(is_fresh + row), 0.0, state)
    # 64 bits: an offset in the tokens' numbers may have more than 32.
    first, end = tl.load(token_bounds + row).to(tl.int64), tl.load(token_bounds + row + 1).to(tl.int64)
    token, last = first, tl.load(save_bounds + row + 1)
    # The tokens up to each save, then those behind the last one.
    for save in range(tl.load(save_bounds + row), last + 1):
        stop = end
        if save < last:
            stop = first + tl.load(row_saves + 2 * save)
        for number in range(token, stop):
            at = number * HEADS + head
            keys = tl.load(key + at * KEY_DIM + row_index, mask=has_row, other=0.0)[:, None]
            queries = tl.load(query + at * KEY_DIM + row_index, mask=has_row, other=0.0)[:, None]
            values = tl.load(value + at * VALUE_DIM + column, mask=has_column, other=0.0)
            state = state * tl.load(decay + at)
            if HAS_DELTA_RULE:
                values = (values - tl.sum(state * keys, axis=0)) * tl.load(beta + at)
            state = state + keys * values[None, :]
            tl.store(out + at * VALUE_DIM + column, tl.sum(state * queries, axis=0), mask=has_column)
        token = stop
        if save < last:
            entry = tl.load(row_saves + 2 * save + 1).to(tl.int64)
            tl.store(states + entry * entry_size + place, state, mask=mask)
    tl.store(own, state, mask=mask)


def variants() -> list[KernelVariant]:
    """Return the variants in use: delta nets of Qwen3.5, and Mamba-2 layers of Granite 4."""
    types = ["*fp32", "*fp32", "*fp32", "*fp32", "*fp32", "*fp32", "*fp32", "*i64", "*i1", "*i32", "*i32", "*i32"]
    return [
        _variant("delta rule", {"HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}, types),
        _variant("state space", {"HEADS": 128, "KEY_DIM": 128, "VALUE_DIM": 64}, types),
    ]


def _variant(name: str, shape: dict[str, int], types: list[str]) -> KernelVariant:
    constants = {**shape, "KEYS": shape["KEY_DIM"], "COLUMNS": COLUMNS, "HAS_DELTA_RULE": name == "delta rule"}
    return KernelVariant(
        name=f"recurrence {name}", kernel=recurrence_kernel, constants=constants, num_warps=NUM_WARPS,
        signature=dict(zip(recurrence_kernel.arg_names, types, strict=False)) | dict.fromkeys(constants, "constexpr"),
    )  # fmt: skip
