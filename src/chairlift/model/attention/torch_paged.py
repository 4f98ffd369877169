"""TorchAttention: paged attention in few large torch operations, on any device and dtype.

    decodes of a step, longest first        one group of operations per bucket: gather, then attention of all its rows

    row 4  ################################  ┐ bucket 0: whole blocks, padded to the number of its longest row;
    row 1  ##############################xx  ┘           a mask of -inf excludes what is not visible to a row
    row 0  ############                      ┐ bucket 1
    row 3  ##########xx                      ┘

    chunks                                   one row after another, some tokens at a time

A bucket ends when more padding would cost more than another bucket, or when its keys and values would exceed the
workspace. The data that the layers of a kind share (rows, slots, masks) are computed once per step, when the first of
these layers runs.

The blocks of a decoding row are gathered whole, which is faster than slot by slot. Slots that are not visible to the
row are overwritten with zeros: no other contents of the KV cache can leak through a masked product (0 * NaN is NaN).
Padding repeats the row's own first block. No mask covers two sequences.

Keys and values are interleaved, so that one gather reads both. A spare block follows the last block. Its last slot
receives what is written to slot -1:

    [num_blocks + SPARE_BLOCKS, block_size, 2, kv_heads, head_dim]
     `- key, value: without the spare block  `- 0 keys, 1 values
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from chairlift.model.attention.base import AttentionSpec, PagedKV, copy_blocks
from chairlift.model.attention.eager import eager_attention
from chairlift.model.attention.kv_pages import slots_part
from chairlift.model.attention.length_buckets import split_into_buckets
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS
from chairlift.model.config.layer_groups import CachePlace
from chairlift.model.device.kv_dtype import as_elements, as_stored
from chairlift.model.device.page_prefault import lazy_zeros

Int64 = NDArray[np.int64]

MAX_QUERIES = 1024
"""New tokens of a row that are computed at once under a mask."""

GATHER_BYTES = 4 << 20
"""Bytes of decoding rows' keys and values that are gathered at once, unless a single row has more."""

MAX_CACHED_INDICES = 1 << 20
"""Slots whose indices and masks are cached for the layers of a step. Further ones are computed for each layer."""

OPERATION_BYTES = 1 << 20
"""Bytes that can be gathered in the time of another bucket's operations."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """The blocks of a bucket's B rows, padded to W blocks, which have N slots.

    Attributes:
        blocks: int64 [B * W].
        hidden: int64 [U], the slots, of B * N, that are not visible to their row; None for none.
        mask: [B, 1, 1, N], 0 or -inf, in the dtype of the model; None if all of `visible` is visible to all rows.
        visible: the slots, of N, that are used; for a single row only its visible ones, so that it needs no mask.
    """

    blocks: Tensor
    hidden: Tensor | None
    mask: Tensor | None
    visible: slice


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Decoding rows that are computed together.

    Attributes:
        rows: rows of the batch.
        index: the same rows, int64 [B] on the device.
        keys: blocks of the rows; None if too many indices are cached already.
    """

    rows: tuple[int, ...]
    index: Tensor
    keys: _Keys | None


@dataclass(slots=True)
class TorchPlan:
    """Data that the layers of one step share, computed when the first layer of a kind runs.

    Attributes:
        decodes: by (group, window), the buckets of rows with one token.
        chunks: by (group, window, row), the visible slots of a row with more tokens, int64 [N].
        masks: by window, for the most new tokens and the most keys before them; every other mask is a slice of it.
        num_cached: number of indices in `decodes` and `chunks`.
    """

    decodes: dict[tuple[int, int | None], tuple[_Bucket, ...]] = field(default_factory=dict)
    chunks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    num_cached: int = 0


class TorchAttention:
    """AttentionBackend in batched torch operations. In float64 it differs from the reference in the order of sums only.

    Owns: a workspace for gathered keys and values, as large as the largest step needs.
    """

    has_plain_kv = True
    supports_cuda_graph = False

    def __init__(self) -> None:
        self._workspace: Tensor | None = None

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index; its tensors are views into one."""
        shape = (num_blocks + SPARE_BLOCKS, block_size, 2, kv_heads, head_dim)

        def allocate() -> PagedKV:
            on_host = device.type == "cpu"
            both = lazy_zeros(shape, dtype) if on_host else torch.zeros(shape, dtype=dtype, device=device)
            return PagedKV(both[:num_blocks, :, 0], both[:num_blocks, :, 1])

        return [allocate() for _ in range(layers)]

    def part_of_pages(self, pages: PagedKV, place: CachePlace) -> PagedKV:
        """See SharesPages."""
        return slots_part(pages, place)

    def plan(self, batch: ForwardBatch) -> TorchPlan:
        """Return an empty plan."""
        return TorchPlan()

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is the last slot of the spare block."""
        slots = as_elements(_slots_of(kv, spare=True))
        # Padding needs no mask: its slot -1 is the last one of the spare block, which no sequence reads.
        slots[slot_mapping, 0] = as_elements(as_stored(key, kv.key.dtype))
        slots[slot_mapping, 1] = as_elements(as_stored(value, kv.key.dtype))

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: TorchPlan, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros."""
        cu_q = batch.cu_q_list
        if cu_q[-1] < batch.num_tokens:
            out[cu_q[-1] :] = 0
        if batch.num_decodes:
            self._attend_decodes(query, kv, batch, spec, plan, out)
        for row in range(batch.num_decodes, batch.num_seqs):
            rows = slice(cu_q[row], cu_q[row + 1])
            self._attend_chunk(query[rows], kv, batch, spec, plan, out[rows], row)

    def _attend_decodes(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: TorchPlan, out: Tensor
    ) -> None:
        kind = (spec.group, spec.window)
        if kind not in plan.decodes:
            plan.decodes[kind] = _buckets(batch, spec, kv, plan, query.dtype)
        buckets = plan.decodes[kind]
        heads = kv.key.shape[2]
        for bucket in buckets:
            has_all_rows = len(buckets) == 1 and len(bucket.rows) == batch.num_decodes
            queries = query[: batch.num_decodes] if has_all_rows else query.index_select(0, bucket.index)
            keys = bucket.keys or _keys(batch, spec, kv, bucket.rows, bucket.index, query.dtype)
            gathered = self._gather_blocks(kv, keys, len(bucket.rows), query.dtype)
            key, value = (each[:, :, keys.visible] for each in gathered)
            attended = _attend(
                queries.view(len(queries), heads, -1, queries.shape[-1]), key, value, keys.mask, spec
            ).flatten(1, 2)
            if has_all_rows:
                out[: batch.num_decodes] = attended
            else:
                out.index_copy_(0, bucket.index, attended)
        # Rows without a key are in no bucket; their output must not be what the memory held before.
        if sum(len(bucket.rows) for bucket in buckets) < batch.num_decodes:
            empty = [row for row in range(batch.num_decodes) if batch.seq_lens_list[row] == 0]
            out[empty] = 0

    def _attend_chunk(
        self,
        query: Tensor,
        kv: PagedKV,
        batch: ForwardBatch,
        spec: AttentionSpec,
        plan: TorchPlan,
        out: Tensor,
        row: int,
    ) -> None:
        """Compute attention of one row's new tokens, query [Q, heads, D], and all keys that are visible to them."""
        new, seq_len, window = len(query), batch.seq_lens_list[row], spec.window
        if new == 0 or seq_len == 0:
            out.zero_()
            return
        start = seq_len - new
        first = 0 if window is None else max(0, start - window + 1)
        slots = _slots(batch, spec, kv, first, seq_len, row, plan)
        key, value = (each[0] for each in self._gather_slots(kv, slots, query.dtype))  # [kv_heads, N, D]
        shared = query.shape[1] // len(key)
        key, value = (each[:, None].expand(-1, shared, -1, -1) for each in (key, value))
        grouped = query.transpose(0, 1).view(-1, shared, new, query.shape[-1])  # [kv_heads, shared, Q, D]
        is_plain = spec.softcap is None and spec.sinks is None
        # A whole prompt whose window hides nothing: is_causal needs no mask in memory.
        if is_plain and start == 0 and (window is None or seq_len <= window):
            attended = functional.scaled_dot_product_attention(grouped, key, value, is_causal=True, scale=spec.scale)
            out.copy_(attended.flatten(0, 1).transpose(0, 1))
            return
        for begin in range(0, new, MAX_QUERIES):
            part = slice(begin, min(begin + MAX_QUERIES, new))
            # The oldest key that the first token of this part sees; later ones see none before it.
            low = first if window is None else max(0, start + begin - window + 1)
            visible = slice(low - first, start + part.stop - first)
            mask = _chunk_mask(part.stop - begin, visible.stop - visible.start, batch, window, query, plan)
            attended = _attend_masked(grouped[:, :, part], key[:, :, visible], value[:, :, visible], mask, spec)
            out[part] = attended.flatten(0, 1).transpose(0, 1)

    def _gather_blocks(self, kv: PagedKV, keys: _Keys, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Gather keys and values [rows, kv_heads, N, D] of the blocks, in a dtype; valid as `_gather` states."""
        blocks, block_size, heads, width = kv.key.shape
        both = self._gather(_slots_of(kv).view(blocks, block_size, 2, heads, width), keys.blocks)
        if keys.hidden is not None:
            both.view(-1, 2 * heads * width).index_fill_(0, keys.hidden, 0)
        return _split_keys_values(both.view(kv.key.dtype).to(dtype), rows, heads, width)

    def _gather_slots(self, kv: PagedKV, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Gather keys and values [1, kv_heads, N, D] of N slots, in a dtype; valid as `_gather` states."""
        heads, width = kv.key.shape[2:]
        both = self._gather(_slots_of(kv), slots)
        return _split_keys_values(both.view(kv.key.dtype).to(dtype), 1, heads, width)

    def _gather(self, pieces: Tensor, index: Tensor) -> Tensor:
        """Gather pieces of a KV cache [P, ...], as as_elements returns them, into [len(index), ...].

        They are valid until the next call.
        """
        pieces = as_elements(pieces)
        if pieces.is_contiguous():  # one row for each piece is copied faster
            pieces = pieces.flatten(1)
        size = len(index) * pieces[0].numel()
        space = self._workspace
        if space is None or space.numel() < size or (space.dtype, space.device) != (pieces.dtype, pieces.device):
            self._workspace = space = None  # free it first: memory may not suffice for both
            min_size = GATHER_BYTES // pieces.element_size()
            self._workspace = space = torch.empty(max(size, min_size), dtype=pieces.dtype, device=pieces.device)
        gathered = space[:size].view(len(index), *pieces.shape[1:])
        torch.index_select(pieces, 0, index, out=gathered)
        return gathered


def _split_keys_values(both: Tensor, rows: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Split gathered data into keys and values [rows, heads, N, width]."""
    key, value = both.view(rows, -1, 2, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    return key, value


def _slots_of(kv: PagedKV, *, spare: bool = False) -> Tensor:
    """Return a view [slots, 2, kv_heads, D] of all blocks, with `spare` including the spare block."""
    blocks, block_size, heads, width = kv.key.shape
    shape = ((blocks + SPARE_BLOCKS * spare) * block_size, 2, heads, width)
    from_key_to_value = kv.value.storage_offset() - kv.key.storage_offset()
    return kv.key.as_strided(shape, (kv.key.stride(1), from_key_to_value, width, 1))


def _slots(
    batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, first: int, end: int, row: int, plan: TorchPlan
) -> Tensor:
    """Return the slots, int64 [end - first], of positions [first, end) of one row; cached in the plan."""
    kind = (spec.group, spec.window, row)
    if kind in plan.chunks:
        return plan.chunks[kind]
    block_size = kv.key.shape[1]
    blocks = batch.groups[spec.group].block_table[row, first // block_size : (end - 1) // block_size + 1].long()
    offsets = torch.arange(block_size, device=blocks.device)
    skipped = first % block_size
    slots = (blocks[:, None] * block_size + offsets).flatten()[skipped : skipped + end - first]
    # One bound for all rows and kinds of layers of a step: kv_cache_sizing.py leaves memory for so many.
    if plan.num_cached + end - first <= MAX_CACHED_INDICES:
        plan.num_cached += end - first
        plan.chunks[kind] = slots
    return slots


def _buckets(
    batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, plan: TorchPlan, dtype: torch.dtype
) -> tuple[_Bucket, ...]:
    """Split the rows with one token into buckets; rows without any key are in none. `dtype` is that of queries."""
    _, count, _ = _extents(batch, spec, kv, range(batch.num_decodes))
    slots = (count * kv.key.shape[1]).tolist()
    slot_bytes = 2 * kv.key.shape[2] * kv.key.shape[3] * dtype.itemsize
    buckets = []
    for rows in split_into_buckets(slots, GATHER_BYTES // slot_bytes, OPERATION_BYTES // slot_bytes):
        index = torch.tensor(rows, device=batch.seq_lens.device)
        num_indices = len(rows) * max(slots[row] for row in rows)
        keys = None
        if plan.num_cached + num_indices <= MAX_CACHED_INDICES:
            plan.num_cached += num_indices
            keys = _keys(batch, spec, kv, rows, index, dtype)
        buckets.append(_Bucket(rows, index, keys))
    return tuple(buckets)


def _extents(batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, rows: Iterable[int]) -> tuple[Int64, Int64, Int64]:
    """Return for each row, int64 [B]: its first visible position, its number of visible blocks, and its end."""
    end = np.array([batch.seq_lens_list[row] for row in rows], np.int64)
    start = np.zeros_like(end) if spec.window is None else np.maximum(end - spec.window, 0)
    block_size = kv.key.shape[1]
    return start, -(-end // block_size) - start // block_size, end


def _keys(
    batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, rows: Sequence[int], index: Tensor, dtype: torch.dtype
) -> _Keys:
    """Return the blocks of a bucket's rows, and their slots that are not visible; `dtype` is that of queries."""
    start, count, end = (each[:, None] for each in _extents(batch, spec, kv, rows))
    block_size, device = kv.key.shape[1], index.device
    steps, first = np.arange(count.max()), start // block_size
    # Padding must be blocks of the row itself: another sequence's contents could reach the sums as 0 * NaN.
    block_indices = np.where(steps < count, first + steps, first)
    table = batch.groups[spec.group].block_table.index_select(0, index)
    blocks = table.gather(1, torch.from_numpy(block_indices).to(device)).flatten().long()
    # The visible slots of one row lie side by side, so a slice takes the place of the mask.
    if len(rows) == 1:
        before = int(start[0, 0] % block_size)
        return _Keys(blocks, None, None, slice(before, before + int(end[0, 0] - start[0, 0])))
    positions = (block_indices[:, :, None] * block_size + np.arange(block_size)).reshape(len(rows), -1)
    is_hidden = (positions < start) | (positions >= end)
    masked = is_hidden | np.repeat(steps >= count, block_size, axis=1)
    mask = None
    if masked.any():
        mask = torch.zeros(masked.shape, dtype=dtype, device=device)
        mask = mask.masked_fill_(torch.from_numpy(masked).to(device), -torch.inf)[:, None, None]
    hidden = torch.from_numpy(np.flatnonzero(is_hidden)).to(device) if is_hidden.any() else None
    return _Keys(blocks, hidden, mask, slice(None))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Compute attention of query [B, kv_heads, shared, D], one token per row, and key, value [B, kv_heads, N, D].

    The query heads of a KV head take the axis that SDPA uses for the tokens of a sequence, so keys are not repeated.
    """
    if spec.softcap is None and spec.sinks is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=spec.scale)
    mask = None if mask is None else mask[:, :, None]
    return eager_attention(query[:, :, :, None], key[:, :, None], value[:, :, None], mask, spec)[:, :, :, 0]


def _attend_masked(grouped: Tensor, key: Tensor, value: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    """Compute attention of grouped [kv_heads, shared, Q, D], key, value [kv_heads, shared, N, D], mask [Q, N]."""
    if spec.softcap is None and spec.sinks is None:
        return functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=spec.scale)
    return eager_attention(grouped, key, value, mask, spec)


def _chunk_mask(new: int, keys: int, batch: ForwardBatch, window: int | None, like: Tensor, plan: TorchPlan) -> Tensor:
    """Return [new, keys]: 0 for visible keys and -inf for others, in the dtype of the query."""
    max_new = min(batch.max_seqlen_q, MAX_QUERIES)
    before = batch.max_seqlen_k if window is None else min(batch.max_seqlen_k, window - 1)
    if window not in plan.masks:
        # Keys are numbered relative to the first new token; earlier keys are negative.
        position = torch.arange(max_new, device=like.device)[:, None]
        key = torch.arange(-before, max_new, device=like.device)
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        plan.masks[window] = mask.masked_fill_(hidden, -torch.inf)
    part = plan.masks[window][:new, before + new - keys : before + new]
    # SDPA on a GPU needs a mask at an aligned address, which a slice of a larger mask may not have.
    return part if part.device.type == "cpu" else part.clone()
