"""TorchAttention: paged attention in few large torch operations, on any device and dtype.

    decodes of a step, longest first        one operation a bucket: gather, then attend all its rows at once

    row 4  ################################  ┐ bucket 0: whole blocks, padded to as many as its longest row has;
    row 1  ##############################xx  ┘           a mask of -inf takes out what the row does not see
    row 0  ############                      ┐ bucket 1
    row 3  ##########xx                      ┘

    chunks                                   one row after another, some tokens at a time

A bucket ends where more padding would cost more than one more operation, or where its keys and values no longer fit the
workspace. What every layer of a kind needs (rows, slots, masks) is made once a step, when its first layer asks.

A decoding row's blocks are fetched whole, which is faster than slot by slot, and what lies in them that the row does
not see is overwritten with zeros: whatever else the cache holds cannot leak through a masked product (0 * NaN is NaN).
Padding repeats a row's own first block. No mask spans two sequences.

Keys and values lie side by side, so that one gather fetches both; behind the last block lies a spare one, whose last
slot takes what is written to slot -1:

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

from chairlift.model.attention.base import AttentionSpec, ForwardBatch, PagedKV, copy_blocks
from chairlift.model.attention.eager import eager_attention
from chairlift.model.attention.length_buckets import split_into_buckets
from chairlift.model.runner.page_prefault import lazy_zeros

Int64 = NDArray[np.int64]

MAX_QUERIES = 1024
"""New tokens of a row that are attended at once under a mask."""

GATHER_BYTES = 4 << 20
"""Keys and values of decoding rows that are gathered at once, unless one row alone has more."""

SPARE_BLOCKS = 1
"""Blocks that every layer has behind those of the pool."""

KEPT_INDICES = 1 << 20
"""Slots whose place and mask are kept for all layers of a step; what goes beyond is made anew for each layer."""

OPERATION_BYTES = 1 << 20
"""What could be gathered in the time that the operations of one more bucket take."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where the keys of a bucket's B rows lie, padded to W blocks, which are N slots.

    Attributes:
        blocks: int64 [B * W].
        unseen: int64 [U], which of the B * N slots hold something that their row does not see; None for none.
        mask: [B, 1, 1, N], 0 or -inf, in the dtype of the model; None where all rows see all of `seen`.
        seen: which of the N slots of a row count; of one row alone those that it sees, so that it needs no mask.
    """

    blocks: Tensor
    unseen: Tensor | None
    mask: Tensor | None
    seen: slice


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Decoding rows that are attended at once.

    Attributes:
        rows: which rows of the batch.
        index: the same, int64 [B] on the device.
        keys: None where too many indices are kept already.
    """

    rows: tuple[int, ...]
    index: Tensor
    keys: _Keys | None


@dataclass(slots=True)
class TorchPlan:
    """What the layers of one step share, made when the first layer of a kind asks.

    Attributes:
        decodes: by (group, window), the buckets of rows with one token.
        chunks: by (group, window, row), the slots of all that a row with more tokens can see, int64 [N].
        masks: by window, for the most new tokens and the most keys before them; every other mask is a part of it.
        kept: indices in `decodes` and `chunks`.
    """

    decodes: dict[tuple[int, int | None], tuple[_Bucket, ...]] = field(default_factory=dict)
    chunks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    kept: int = 0


class TorchAttention:
    """AttentionBackend in batched plain torch. In float64 it equals the reference but for the order of its sums.

    Owns: a workspace for gathered keys and values, which grows to the largest step.
    """

    def __init__(self) -> None:
        self._workspace: Tensor | None = None

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Make one zeroed KV for each layer index; the tensors of a KV are views into one."""
        shape = (num_blocks + SPARE_BLOCKS, block_size, 2, kv_heads, head_dim)

        def made() -> PagedKV:
            on_host = device.type == "cpu"
            both = lazy_zeros(shape, dtype) if on_host else torch.zeros(shape, dtype=dtype, device=device)
            return PagedKV(both[:num_blocks, :, 0], both[:num_blocks, :, 1])

        return [made() for _ in range(layers)]

    def plan(self, batch: ForwardBatch) -> TorchPlan:
        """Begin a step with nothing made."""
        return TorchPlan()

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is the spare block's last slot."""
        every = _slots_of(kv, spare=True)
        every[slot_mapping, 0] = key
        every[slot_mapping, 1] = value

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, all as they were before: pairs int [C, 2] of (from, to)."""
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
            plan.decodes[kind] = _buckets(batch, spec, kv, plan)
        buckets = plan.decodes[kind]
        heads = kv.key.shape[2]
        for bucket in buckets:
            whole = len(buckets) == 1 and len(bucket.rows) == batch.num_decodes
            asking = query[: batch.num_decodes] if whole else query.index_select(0, bucket.index)
            keys = bucket.keys or _keys(batch, spec, kv, bucket.rows, bucket.index)
            key, value = (each[:, :, keys.seen] for each in self._gather_blocks(kv, keys, len(bucket.rows)))
            attended = _attend(
                asking.view(len(asking), heads, -1, asking.shape[-1]), key, value, keys.mask, spec
            ).flatten(1, 2)
            if whole:
                out[: batch.num_decodes] = attended
            else:
                out.index_copy_(0, bucket.index, attended)
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
        """Attend the new tokens of one row, query [Q, heads, D], to all they can see."""
        new, seq_len, window = len(query), batch.seq_lens_list[row], spec.window
        if new == 0 or seq_len == 0:
            out.zero_()
            return
        start = seq_len - new
        first = 0 if window is None else max(0, start - window + 1)
        slots = _slots(batch, spec, kv, first, seq_len, row, plan)
        key, value = (each[0] for each in self._gather_slots(kv, slots))  # [kv_heads, N, D]
        shared = query.shape[1] // len(key)
        key, value = (each[:, None].expand(-1, shared, -1, -1) for each in (key, value))
        grouped = query.transpose(0, 1).view(-1, shared, new, query.shape[-1])  # [kv_heads, shared, Q, D]
        plain = spec.softcap is None and spec.sinks is None
        if plain and start == 0 and (window is None or seq_len <= window):
            attended = functional.scaled_dot_product_attention(grouped, key, value, is_causal=True, scale=spec.scale)
            out.copy_(attended.flatten(0, 1).transpose(0, 1))
            return
        for begin in range(0, new, MAX_QUERIES):
            some = slice(begin, min(begin + MAX_QUERIES, new))
            low = first if window is None else max(0, start + begin - window + 1)
            seen = slice(low - first, start + some.stop - first)
            mask = _chunk_mask(some.stop - begin, seen.stop - seen.start, batch, window, query, plan)
            attended = _attend_masked(grouped[:, :, some], key[:, :, seen], value[:, :, seen], mask, spec)
            out[some] = attended.flatten(0, 1).transpose(0, 1)

    def _gather_blocks(self, kv: PagedKV, keys: _Keys, rows: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [rows, kv_heads, N, D] of the blocks, as `_gather` does."""
        blocks, block_size, heads, width = kv.key.shape
        size = 2 * heads * width
        both = self._gather(kv.key.as_strided((blocks, block_size * size), (block_size * size, 1)), keys.blocks)
        if keys.unseen is not None:
            both.view(-1, size).index_fill_(0, keys.unseen, 0.0)
        return _parted(both, rows, heads, width)

    def _gather_slots(self, kv: PagedKV, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, kv_heads, N, D] of N slots, as `_gather` does."""
        heads, width = kv.key.shape[2:]
        return _parted(self._gather(_slots_of(kv).view(-1, 2 * heads * width), slots), 1, heads, width)

    def _gather(self, pieces: Tensor, index: Tensor) -> Tensor:
        """Return some pieces [P, E] of a cache, [len(index), E]; they are good until the next call."""
        wanted = len(index) * pieces.shape[1]
        space = self._workspace
        if space is None or space.numel() < wanted or (space.dtype, space.device) != (pieces.dtype, pieces.device):
            self._workspace = space = None  # let go first: there is not room for both
            least = GATHER_BYTES // pieces.element_size()
            self._workspace = space = torch.empty(max(wanted, least), dtype=pieces.dtype, device=pieces.device)
        gathered = space[:wanted].view(len(index), -1)
        torch.index_select(pieces, 0, index, out=gathered)
        return gathered


def _parted(both: Tensor, rows: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Return keys and values [rows, heads, N, width] of what was gathered."""
    key, value = both.view(rows, -1, 2, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    return key, value


def _slots_of(kv: PagedKV, *, spare: bool = False) -> Tensor:
    """Return [slots, 2, kv_heads, D] of all blocks, or with the spare block behind them."""
    blocks, block_size, heads, width = kv.key.shape
    shape = ((blocks + SPARE_BLOCKS * spare) * block_size, 2, heads, width)
    return kv.key.as_strided(shape, (2 * heads * width, heads * width, width, 1))


def _slots(
    batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, first: int, end: int, row: int, plan: TorchPlan
) -> Tensor:
    """Return the slots, int64 [end - first], of positions [first, end) of one row."""
    kind = (spec.group, spec.window, row)
    if kind in plan.chunks:
        return plan.chunks[kind]
    block_size = kv.key.shape[1]
    blocks = batch.groups[spec.group].block_table[row, first // block_size : (end - 1) // block_size + 1].long()
    offsets = torch.arange(block_size, device=blocks.device)
    skipped = first % block_size
    slots = (blocks[:, None] * block_size + offsets).flatten()[skipped : skipped + end - first]
    if plan.kept + end - first <= KEPT_INDICES:
        plan.kept += end - first
        plan.chunks[kind] = slots
    return slots


def _buckets(batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, plan: TorchPlan) -> tuple[_Bucket, ...]:
    """Part the rows with one token; those without any key are in no bucket."""
    _, count, _ = _extents(batch, spec, kv, range(batch.num_decodes))
    slots = (count * kv.key.shape[1]).tolist()
    slot_bytes = 2 * kv.key.shape[2] * kv.key.shape[3] * kv.key.element_size()
    buckets = []
    for rows in split_into_buckets(slots, GATHER_BYTES // slot_bytes, OPERATION_BYTES // slot_bytes):
        index = torch.tensor(rows, device=batch.seq_lens.device)
        wanted = len(rows) * max(slots[row] for row in rows)
        keys = None
        if plan.kept + wanted <= KEPT_INDICES:
            plan.kept += wanted
            keys = _keys(batch, spec, kv, rows, index)
        buckets.append(_Bucket(rows, index, keys))
    return tuple(buckets)


def _extents(batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, rows: Iterable[int]) -> tuple[Int64, Int64, Int64]:
    """Return of each row, int64 [B]: the first position that it sees, over how many blocks it sees, and its end."""
    end = np.array([batch.seq_lens_list[row] for row in rows], np.int64)
    start = np.zeros_like(end) if spec.window is None else np.maximum(end - spec.window, 0)
    block_size = kv.key.shape[1]
    return start, -(-end // block_size) - start // block_size, end


def _keys(batch: ForwardBatch, spec: AttentionSpec, kv: PagedKV, rows: Sequence[int], index: Tensor) -> _Keys:
    """Find the blocks of the bucket's rows, and what in them is not to be seen."""
    start, count, end = (each[:, None] for each in _extents(batch, spec, kv, rows))
    block_size, device = kv.key.shape[1], index.device
    steps, first = np.arange(count.max()), start // block_size
    places = np.where(steps < count, first + steps, first)
    table = batch.groups[spec.group].block_table.index_select(0, index)
    blocks = table.gather(1, torch.from_numpy(places).to(device)).flatten().long()
    if len(rows) == 1:
        before = int(start[0, 0] % block_size)
        return _Keys(blocks, None, None, slice(before, before + int(end[0, 0] - start[0, 0])))
    positions = (places[:, :, None] * block_size + np.arange(block_size)).reshape(len(rows), -1)
    unseen = (positions < start) | (positions >= end)
    masked = unseen | np.repeat(steps >= count, block_size, axis=1)
    mask = None
    if masked.any():
        mask = torch.zeros(masked.shape, dtype=kv.key.dtype, device=device)
        mask = mask.masked_fill_(torch.from_numpy(masked).to(device), -torch.inf)[:, None, None]
    empty = torch.from_numpy(np.flatnonzero(unseen)).to(device) if unseen.any() else None
    return _Keys(blocks, empty, mask, slice(None))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Attend query [B, kv_heads, shared, D], one token a row, to key and value [B, kv_heads, N, D].

    The query heads that share a key head stand where SDPA has the tokens of a sequence: keys are not repeated.
    """
    if spec.softcap is None and spec.sinks is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=spec.scale)
    mask = None if mask is None else mask[:, :, None]
    return eager_attention(query[:, :, :, None], key[:, :, None], value[:, :, None], mask, spec)[:, :, :, 0]


def _attend_masked(grouped: Tensor, key: Tensor, value: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    """Attend grouped [kv_heads, shared, Q, D] to key and value [kv_heads, shared, N, D] under mask [Q, N]."""
    if spec.softcap is None and spec.sinks is None:
        return functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=spec.scale)
    return eager_attention(grouped, key, value, mask, spec)


def _chunk_mask(new: int, keys: int, batch: ForwardBatch, window: int | None, like: Tensor, plan: TorchPlan) -> Tensor:
    """Return [new, keys], 0 where a new token sees a key and -inf elsewhere, in the dtype of the query."""
    max_new = min(batch.max_seqlen_q, MAX_QUERIES)
    before = batch.max_seqlen_k if window is None else min(batch.max_seqlen_k, window - 1)
    if window not in plan.masks:
        # Keys are counted from the first new token; those before it are negative.
        position = torch.arange(max_new, device=like.device)[:, None]
        key = torch.arange(-before, max_new, device=like.device)
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        plan.masks[window] = mask.masked_fill_(hidden, -torch.inf)
    part = plan.masks[window][:new, before + new - keys : before + new]
    # SDPA on a GPU wants a mask that begins at an aligned address, which a part of a larger one need not.
    return part if part.device.type == "cpu" else part.clone()
