"""recurrence_kernel, partial_chunk_kernel: the recurrence of layers with a state, by chunks. TritonOps launches them.

A sequence's chunks are its tokens 0 to CHUNK - 1, CHUNK to 2 * CHUNK - 1, and so on, wherever its steps were cut:

    S         state before the chunk, float32 [key_dim, value_dim], as are all numbers
    D[i, j]   product of the decays of tokens j + 1 to i of the chunk, 0 for j > i; A[i] that of tokens 0 to i
    U[i]      beta[i] · (V[i] − A[i] · K[i] S) − Σ j < i: beta[i] · D[i, j] · (K[i] · K[j]) · U[j], for j = 0, 1, ...
              V[i] without the delta rule
    out[i]    A[i] · Q[i] S + Σ j: (Q[i] · K[j]) · D[i, j] · U[j]
    S'        A[last] · S + Σ j: D[last, j] · K[j] ⊗ U[j], once the chunk is whole

A slot of the state cache has S, and K, U and the decays of the chunk's tokens so far. So the same instructions compute
a token, whether it is decoded, is at the end of a step, or in the midst of one: its bits depend on its own sequence
alone. A sum is either one of a product of tiles, whose row depends on no other row, or has one term that is not zero.

The sources are "Gated Delta Networks" (Yang et al. 2024) and "Transformers are SSMs" (Dao and Gu 2024). They have
exponentials of differences of summed logarithms in the place of D. Here D is multiplied up decay by decay, which cannot
overflow, and rounds as the recurrence token by token does.
"""

from typing import Any

import triton
import triton.language as tl

from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant

COLUMNS = 32
"""Columns of a state that a program computes."""

KEY_PART = 16
"""Rows of a state, and elements of a key, that are multiplied at once: a thread holds whole rows of both factors."""

NUM_WARPS, NUM_STAGES = 4, 1
"""One stage: no load of a state may come before the store of the chunk before."""


@triton.jit
def _decay_products(decay, CHUNK: tl.constexpr):
    """Return D [CHUNK, CHUNK] of the decays [CHUNK] of a chunk's tokens; see the module."""
    token = tl.arange(0, CHUNK)
    later, earlier = token[:, None], token[None, :]
    products = tl.where(later >= earlier, 1.0, 0.0).to(decay.dtype)
    for number in range(1, CHUNK):
        factor = tl.sum(tl.where(token == number, decay, 0.0), axis=0)
        products = tl.where((later >= number) & (earlier < number), products * factor, products)
    return products


@triton.jit
def _solve(updates, lower, is_new, CHUNK: tl.constexpr):
    """Return U [CHUNK, COLUMNS] of the rows is_new [CHUNK], given the others and the first term of these in `updates`.

    Args:
        lower: [CHUNK, CHUNK], factors of U[j] in U[i].
    """
    token = tl.arange(0, CHUNK)
    for number in range(CHUNK - 1):
        update = tl.sum(tl.where((token == number)[:, None], updates, 0.0), axis=0)
        factor = tl.sum(tl.where((token == number)[None, :], lower, 0.0), axis=1)
        is_later = is_new & (token > number)
        updates = tl.where(is_later[:, None], updates - factor[:, None] * update[None, :], updates)
    return updates


@triton.jit
def _chunk_keys(key, partial_key, new_row, old_row, is_new, is_old, element, KEY_DIM: tl.constexpr):
    """Return elements [KEY_PART] of the keys of a chunk, [CHUNK, KEY_PART]; rows that are neither new nor old are 0."""
    has_element = (element < KEY_DIM)[None, :]
    new = tl.load(key + new_row[:, None] * KEY_DIM + element[None, :], mask=is_new[:, None] & has_element, other=0.0)
    old_place = old_row[:, None] * KEY_DIM + element[None, :]
    old = tl.load(partial_key + old_place, mask=is_old[:, None] & has_element, other=0.0)
    return tl.where(is_old[:, None], old, new)


@triton.jit
def _key_products(
    query, key, partial_key, state, new_row, old_row, is_new, is_old, has_state, column, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, KEY_PART: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    HAS_DELTA_RULE: tl.constexpr,
):  # fmt: skip
    """Return Q Kᵀ and K Kᵀ [CHUNK, CHUNK], Q S and K S [CHUNK, COLUMNS]; those of K are zeros without the delta rule.

    Args:
        new_row, old_row: [CHUNK], where a token's query and key are among the new ones, and among those that are kept.
        state: the head's; zeros unless has_state.
    """
    square = tl.zeros([CHUNK, CHUNK], dtype=state.dtype.element_ty)
    wide = tl.zeros([CHUNK, COLUMNS], dtype=state.dtype.element_ty)
    query_keys, key_keys, query_state, key_state = square, square, wide, wide
    for begin in range(0, KEY_DIM, KEY_PART):
        element = begin + tl.arange(0, KEY_PART)
        mask = (element < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :] & has_state
        part = tl.load(state + element[:, None] * VALUE_DIM + column[None, :], mask=mask, other=0.0)
        keys = _chunk_keys(key, partial_key, new_row, old_row, is_new, is_old, element, KEY_DIM)
        mask = is_new[:, None] & (element < KEY_DIM)[None, :]
        queries = tl.load(query + new_row[:, None] * KEY_DIM + element[None, :], mask=mask, other=0.0)
        query_keys = tl.dot(queries, tl.trans(keys), query_keys, input_precision="ieee")
        query_state = tl.dot(queries, part, query_state, input_precision="ieee")
        if HAS_DELTA_RULE:
            key_keys = tl.dot(keys, tl.trans(keys), key_keys, input_precision="ieee")
            key_state = tl.dot(keys, part, key_state, input_precision="ieee")
    return query_keys, key_keys, query_state, key_state


@triton.jit
def _store_next_state(
    state, key, partial_key, saved, new_row, old_row, is_new, is_old, has_state, column, products, from_start,
    updates, chunk_end, row_saves, bounds, entry_size, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_PART: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store S', and copies of it for the saves at the chunk's end.

    Args:
        saved: the head's state in entry 0; others are entry_size further.
        from_start: A of each token.
        chunk_end: new tokens of the row up to the chunk's end.
        bounds: where the row's bounds in row_saves are.
    """
    is_last = tl.arange(0, CHUNK) == CHUNK - 1
    to_last = tl.sum(tl.where(is_last[:, None], products, 0.0), axis=0)
    whole = tl.sum(tl.where(is_last, from_start, 0.0), axis=0)
    # All threads have read the state, and all have written it before one reads it again.
    first_save, last_save = tl.load(bounds), tl.load(bounds + 1)
    tl.debug_barrier()
    for begin in range(0, KEY_DIM, KEY_PART):
        element = begin + tl.arange(0, KEY_PART)
        mask = (element < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :]
        place = element[:, None] * VALUE_DIM + column[None, :]
        part = tl.load(state + place, mask=mask & has_state, other=0.0)
        keys = _chunk_keys(key, partial_key, new_row, old_row, is_new, is_old, element, KEY_DIM)
        part = tl.dot(tl.trans(keys * to_last[:, None]), updates, part * whole, input_precision="ieee")
        tl.store(state + place, part, mask=mask)
        for save in range(first_save, last_save):
            if tl.load(row_saves + 2 * save) == chunk_end:
                entry = tl.load(row_saves + 2 * save + 1).to(tl.int64)
                tl.store(saved + entry * entry_size + place, part, mask=mask)
    tl.debug_barrier()


@triton.jit
def recurrence_kernel(
    query, key, value, decay, beta, states, partial_key, partial_update, partial_decay, out, slots, starts,
    token_bounds, save_bounds, row_saves, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, KEY_PART: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    HAS_DELTA_RULE: tl.constexpr,
):  # fmt: skip
    """Run one row and head, for COLUMNS columns of its state; see the module.

    Args:
        query, key: [T, KEY_HEADS, KEY_DIM], dense, float32 or float64, as all numbers are.
        value, out: [T, HEADS, VALUE_DIM]. decay, beta: [T, HEADS]; beta counts if HAS_DELTA_RULE.
        states: [entries, HEADS, KEY_DIM, VALUE_DIM].
        partial_key, partial_update, partial_decay: see PartialChunk.
        slots, starts, token_bounds, save_bounds, row_saves: see StateStep. Saves are at the ends of chunks.
    """
    row, head, key_head = tl.program_id(0), tl.program_id(1), tl.program_id(1) // (HEADS // KEY_HEADS)
    token, column = tl.arange(0, CHUNK), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    # 64 bits: an offset in the tokens' numbers may have more than 32.
    first, start = tl.load(token_bounds + row).to(tl.int64), tl.load(starts + row).to(tl.int64)
    length, slot = start + tl.load(token_bounds + row + 1) - first, tl.load(slots + row)
    kept = slot * CHUNK + token
    entry_size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    saved = states + head * KEY_DIM * VALUE_DIM
    state = saved + slot * entry_size
    for chunk in range(start // CHUNK, (length + CHUNK - 1) // CHUNK):
        position = chunk * CHUNK + token
        is_old, is_new = position < start, (position >= start) & (position < length)
        number, has_state = first + position - start, chunk > 0  # before the first chunk it is zeros
        new_row, old_row = number * KEY_HEADS + key_head, kept * KEY_HEADS + key_head
        decays = tl.load(decay + number * HEADS + head, mask=is_new, other=1.0)
        decays = tl.where(is_old, tl.load(partial_decay + kept * HEADS + head, mask=is_old, other=1.0), decays)
        products = _decay_products(decays, CHUNK)
        from_first = tl.sum(tl.where((token == 0)[None, :], products, 0.0), axis=1)
        from_start = from_first * tl.sum(tl.where(token == 0, decays, 0.0), axis=0)
        query_keys, key_keys, query_state, key_state = _key_products(
            query, key, partial_key, state, new_row, old_row, is_new, is_old, has_state, column, KEY_DIM, VALUE_DIM,
            KEY_PART, COLUMNS, CHUNK, HAS_DELTA_RULE,
        )  # fmt: skip
        new_place = (number * HEADS + head)[:, None] * VALUE_DIM + column[None, :]
        old_place = (kept * HEADS + head)[:, None] * VALUE_DIM + column[None, :]
        new_mask = is_new[:, None] & (column < VALUE_DIM)[None, :]
        updates = tl.load(value + new_place, mask=new_mask, other=0.0)
        if HAS_DELTA_RULE:
            share = tl.load(beta + number * HEADS + head, mask=is_new, other=0.0)[:, None]
            updates = (updates - from_start[:, None] * key_state) * share
        old_mask = is_old[:, None] & (column < VALUE_DIM)[None, :]
        updates = tl.where(is_old[:, None], tl.load(partial_update + old_place, mask=old_mask, other=0.0), updates)
        if HAS_DELTA_RULE:
            updates = _solve(updates, key_keys * products * share, is_new, CHUNK)
        outputs = from_start[:, None] * query_state
        outputs = tl.dot(query_keys * products, updates, outputs, input_precision="ieee")
        tl.store(out + new_place, outputs, mask=new_mask)
        if (chunk + 1) * CHUNK <= length:
            _store_next_state(
                state, key, partial_key, saved, new_row, old_row, is_new, is_old, has_state, column, products,
                from_start, updates, (chunk + 1) * CHUNK - start, row_saves, save_bounds + row, entry_size, KEY_DIM,
                VALUE_DIM, KEY_PART, CHUNK,
            )  # fmt: skip
        else:
            tl.store(partial_update + old_place, updates, mask=new_mask)


@triton.jit
def partial_chunk_kernel(
    key, decay, partial_key, partial_decay, slots, starts, token_bounds, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Keep keys and decays of the new tokens of a row's last chunk, unless it is whole; for one key head of one row.

    recurrence_kernel keeps its updates.

    Runs behind recurrence_kernel, of which several programs read what was kept before.

    Args:
        KEYS: KEY_DIM, rounded up to a power of 2.
        GROUP: heads of a key head, rounded up so.
    """
    row, key_head = tl.program_id(0), tl.program_id(1)
    token, element, member = tl.arange(0, CHUNK), tl.arange(0, KEYS)[None, :], tl.arange(0, GROUP)[None, :]
    first, end = tl.load(token_bounds + row).to(tl.int64), tl.load(token_bounds + row + 1).to(tl.int64)
    start, slot = tl.load(starts + row), tl.load(slots + row)
    length = start + end - first
    position = length // CHUNK * CHUNK + token
    is_new = ((position >= start) & (position < length))[:, None]
    number, kept = (first + position - start)[:, None], (slot * CHUNK + token)[:, None]
    mask = is_new & (element < KEY_DIM)
    values = tl.load(key + (number * KEY_HEADS + key_head) * KEY_DIM + element, mask=mask)
    tl.store(partial_key + (kept * KEY_HEADS + key_head) * KEY_DIM + element, values, mask=mask)
    heads_of_key: tl.constexpr = HEADS // KEY_HEADS
    mask, head = is_new & (member < heads_of_key), key_head * heads_of_key + member
    values = tl.load(decay + number * HEADS + head, mask=mask)
    tl.store(partial_decay + kept * HEADS + head, values, mask=mask)


def variants() -> list[KernelVariant]:
    """Return the variants in use: delta nets of Qwen3.5, and Mamba-2 layers of Granite 4."""
    found = []
    for name, heads, key_heads, value_dim in (("delta rule", 32, 16, 128), ("state space", 128, 1, 64)):
        shape = {"HEADS": heads, "KEY_HEADS": key_heads, "KEY_DIM": 128, "CHUNK": STATE_CHUNK_TOKENS}
        tiles = {"VALUE_DIM": value_dim, "KEY_PART": KEY_PART, "COLUMNS": COLUMNS}
        has_delta_rule = {"HAS_DELTA_RULE": name == "delta rule"}
        of_part = STATE_CHUNK_TOKENS * KEY_PART * (STATE_CHUNK_TOKENS + COLUMNS)  # Q Kᵀ and Q S
        behind = STATE_CHUNK_TOKENS * COLUMNS * (STATE_CHUNK_TOKENS + KEY_PART)  # outputs and S'
        fma = (of_part * (2 if name == "delta rule" else 1) + behind) // (32 * NUM_WARPS)  # of one thread
        found.append(_variant(f"recurrence {name}", recurrence_kernel, shape | tiles | has_delta_rule, fma))
        found.append(
            _variant(f"partial chunk {name}", partial_chunk_kernel, shape | {"KEYS": 128, "GROUP": heads // key_heads})
        )
    return found


def _variant(name: str, kernel: Any, constants: dict[str, int | bool], max_fma: int = 0) -> KernelVariant:
    integers = {"slots": "*i64"} | dict.fromkeys(("starts", "token_bounds", "save_bounds", "row_saves"), "*i32")
    signature = {each: integers.get(each, "*fp32") for each in kernel.arg_names}
    return KernelVariant(
        name=name, kernel=kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constants=constants,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES, max_fma=max_fma,
    )  # fmt: skip
