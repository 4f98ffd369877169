"""apply_new_blocks, build_inputs: make a step's model inputs on the device, from one copied array of int32 numbers.

    packed      [rows]  slots, numbers of new tokens, start positions, offsets of the first tokens; then, at given
                offsets, the token ids [T], the new blocks [B, 4]: slot, group, index in the table, block id; and the
                slots [rows] for which rows sample

State by slot is on the device: block tables [groups, slots, width], and the token that each slot sampled last. So a
step can be launched before the tokens of the one before it are known on the host. The order of a stream keeps a step
from reading what a later one writes.
"""

import triton
import triton.language as tl
from torch import Tensor

from chairlift.engine.step_plan import LAST_SAMPLED
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant

TILE = 256
"""Tokens, or blocks of a table, that a program handles at once."""

LAST_SAMPLED_ID = tl.constexpr(LAST_SAMPLED)


_COUNTS = [
    "begin", "num_blocks", "num_rows", "num_tokens", "padded_tokens", "ids_begin", "slots_begin", "mapping_stride",
    "table_group_stride", "table_stride",
]  # fmt: skip
"""Numbers that change from step to step: their values make no new variant of a kernel."""


@triton.jit(do_not_specialize=_COUNTS)
def _apply_new_blocks(packed, tables, begin, num_blocks, group_stride, slot_stride, SIZE: tl.constexpr):
    entry = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    is_there = entry < num_blocks
    fields = packed + begin + entry * 4
    slot = tl.load(fields, mask=is_there, other=0).to(tl.int64)
    group = tl.load(fields + 1, mask=is_there, other=0).to(tl.int64)
    index = tl.load(fields + 2, mask=is_there, other=0)
    block = tl.load(fields + 3, mask=is_there, other=0)
    tl.store(tables + group * group_stride + slot * slot_stride + index, block, mask=is_there)


@triton.jit(do_not_specialize=_COUNTS)
def _build_inputs(
    packed, tables, last_sampled, input_ids, positions, cu_seqlens, seq_lens, slot_mapping, block_table, sample_slots,
    num_rows, num_tokens, padded_tokens, ids_begin, slots_begin, group_stride, slot_stride, mapping_stride,
    table_group_stride, table_stride, block_size, NUM_GROUPS: tl.constexpr, WRITES: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    is_padding = row >= num_rows
    if row == tl.num_programs(0) - 1:  # the last program writes the padding tokens
        tl.store(cu_seqlens, 0)
        for begin in range(num_tokens, padded_tokens, SIZE):
            token = begin + tl.arange(0, SIZE)
            is_there = token < padded_tokens
            tl.store(input_ids + token, tl.zeros([SIZE], tl.int64), mask=is_there)
            tl.store(positions + token, tl.zeros([SIZE], tl.int64), mask=is_there)
            for group in tl.static_range(NUM_GROUPS):
                nowhere = tl.zeros([SIZE], tl.int64) - 1
                tl.store(slot_mapping + group * mapping_stride + token, nowhere, mask=is_there)
    elif is_padding:
        tl.store(sample_slots + row, -1)
        tl.store(seq_lens + row, 0)
        tl.store(cu_seqlens + row + 1, num_tokens)
    else:
        slot = tl.load(packed + row).to(tl.int64)
        count = tl.load(packed + num_rows + row)
        start = tl.load(packed + 2 * num_rows + row)
        first = tl.load(packed + 3 * num_rows + row)
        tl.store(seq_lens + row, start + count)
        tl.store(cu_seqlens + row + 1, first + count)
        if slots_begin >= 0:
            tl.store(sample_slots + row, tl.load(packed + slots_begin + row))
        # The sampler of the step before has written it: both run on one stream.
        last = tl.load(last_sampled + slot)
        own_table = tables + slot * slot_stride
        for begin in range(0, count, SIZE):
            offset = begin + tl.arange(0, SIZE)
            is_there = offset < count
            token_id = tl.load(packed + ids_begin + first + offset, mask=is_there, other=0)
            token_id = tl.where(token_id == LAST_SAMPLED_ID, last, token_id)
            position = start + offset
            tl.store(input_ids + first + offset, token_id.to(tl.int64), mask=is_there)
            tl.store(positions + first + offset, position.to(tl.int64), mask=is_there)
            for group in tl.static_range(NUM_GROUPS):
                entry = own_table + group * group_stride + position // block_size
                block = tl.load(entry, mask=is_there, other=0).to(tl.int64)
                address = block * block_size + position % block_size
                if not WRITES:
                    address = address * 0 - 1
                tl.store(slot_mapping + group * mapping_stride + first + offset, address, mask=is_there)
        num_entries = (start + count + block_size - 1) // block_size
        for begin in range(0, num_entries, SIZE):
            index = begin + tl.arange(0, SIZE)
            is_there = index < num_entries
            for group in tl.static_range(NUM_GROUPS):
                block = tl.load(own_table + group * group_stride + index, mask=is_there, other=0)
                place = block_table + group * table_group_stride + row * table_stride + index
                # An entry behind a window may not be a block; 0 keeps kernels that load whole tables within the cache.
                tl.store(place, tl.maximum(block, 0), mask=is_there)


def apply_new_blocks(packed: Tensor, begin: int, num_blocks: int, tables: Tensor) -> None:
    """Write the new blocks at packed[begin:], [num_blocks, 4], into tables int32 [groups, slots, width]."""
    if num_blocks:
        grid = (triton.cdiv(num_blocks, TILE),)
        _apply_new_blocks[grid](
            packed, tables, begin, num_blocks, tables.stride(0), tables.stride(1), SIZE=TILE, **LAUNCH_OPTIONS
        )  # fmt: skip


def build_inputs(
    packed: Tensor, num_rows: int, num_tokens: int, ids_begin: int, slots_begin: int, tables: Tensor,
    last_sampled: Tensor, *, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor, seq_lens: Tensor,
    slot_mapping: Tensor, block_table: Tensor, sample_slots: Tensor, block_size: int, writes: bool,
) -> None:  # fmt: skip
    """Write the inputs of a step; rows and tokens beyond the step's become padding.

    Args:
        packed: int32, as described above, on the device.
        num_rows: S.
        num_tokens: T.
        ids_begin: where the token ids begin in `packed`.
        slots_begin: where the slots for which rows sample begin; -1 without them.
        tables: int32 [groups, slots, width].
        last_sampled: int32 [slots] or longer.
        input_ids, positions: int64 [padded tokens], written.
        cu_seqlens, seq_lens: int32 [padded rows + 1] and [padded rows], written; padding rows have no tokens.
        slot_mapping: int64 [groups, padded tokens], written; -1 for padding, and everywhere without `writes`.
        block_table: int32 [groups, padded rows, columns], written as far as a row's tokens reach.
        sample_slots: int32 [padded rows], written where there are slots, and -1 in padding rows.
    """
    padded_rows, padded_tokens = len(seq_lens), len(input_ids)
    _build_inputs[(padded_rows + 1,)](
        packed, tables, last_sampled, input_ids, positions, cu_seqlens, seq_lens, slot_mapping, block_table,
        sample_slots, num_rows, num_tokens, padded_tokens, ids_begin, slots_begin, tables.stride(0), tables.stride(1),
        slot_mapping.stride(0), block_table.stride(0), block_table.stride(1), block_size, NUM_GROUPS=len(tables),
        WRITES=writes, SIZE=TILE, **LAUNCH_OPTIONS,
    )  # fmt: skip


def variants() -> list[KernelVariant]:
    """Return the variants in use, for compile_check."""
    blocks = {
        "packed": "*i32", "tables": "*i32", "begin": "i32", "num_blocks": "i32", "group_stride": "i64",
        "slot_stride": "i64", "SIZE": "constexpr",
    }  # fmt: skip
    pointers = {
        "packed": "*i32", "tables": "*i32", "last_sampled": "*i32", "input_ids": "*i64", "positions": "*i64",
        "cu_seqlens": "*i32", "seq_lens": "*i32", "slot_mapping": "*i64", "block_table": "*i32",
        "sample_slots": "*i32",
    }  # fmt: skip
    counts = dict.fromkeys(("num_rows", "num_tokens", "padded_tokens", "ids_begin", "slots_begin"), "i32")
    strides = dict.fromkeys(
        ("group_stride", "slot_stride", "mapping_stride", "table_group_stride", "table_stride"), "i64"
    )
    inputs = {**pointers, **counts, **strides, "block_size": "i32"}
    inputs |= dict.fromkeys(("NUM_GROUPS", "WRITES", "SIZE"), "constexpr")
    return [
        KernelVariant(name="new blocks", kernel=_apply_new_blocks, signature=blocks, constants={"SIZE": TILE}),
        *(
            KernelVariant(
                name=f"step inputs, {groups} groups", kernel=_build_inputs, signature=inputs,
                constants={"NUM_GROUPS": groups, "WRITES": True, "SIZE": TILE},
            )
            for groups in (1, 2)
        ),
    ]  # fmt: skip
