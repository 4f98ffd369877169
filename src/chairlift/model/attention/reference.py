"""ReferenceAttention: gathers each sequence's keys and values and computes attention in torch. Slow and exact.

    positions of a row:   0 ....... first ............ start ................................ seq_len
                          not read  visible to         the new tokens:
                                    new tokens         cu_seqlens_q[s + 1] - cu_seqlens_q[s] of them

Only positions [first, seq_len) are read, so no other contents of the KV cache can reach a result. Each row is computed
alone: its result does not depend on its neighbours, and no mask grows with the batch. A long row is computed some
tokens at a time, with the keys that are visible to these. So no mask is quadratic, and a window costs only its width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.attention.base import AttentionSpec, PagedKV, copy_blocks
from chairlift.model.attention.eager import eager_attention
from chairlift.model.attention.kv_pages import slots_part
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.layer_groups import CachePlace
from chairlift.model.device.kv_dtype import as_elements, as_stored
from chairlift.model.device.page_prefault import lazy_zeros

MAX_QUERIES = 1024
"""New tokens of a row that are computed at once."""


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """Data that the layers of one step share.

    Attributes:
        max_new: largest number of new tokens that are computed at once.
        max_keys: longest sequence.
        masks: by window, built when a layer first needs it, for max_new tokens and the most keys before them. Every
            other mask is a slice of it.
    """

    max_new: int
    max_keys: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)


class ReferenceAttention:
    """AttentionBackend in torch, on any device and dtype. The tests compare every other backend with it."""

    has_plain_kv = True
    supports_cuda_graph = False

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index."""
        shape = (num_blocks, block_size, kv_heads, head_dim)

        def zeros() -> Tensor:
            on_host = device.type == "cpu"
            return lazy_zeros(shape, dtype) if on_host else torch.zeros(shape, dtype=dtype, device=device)

        return [PagedKV(zeros(), zeros()) for _ in range(layers)]

    def part_of_pages(self, pages: PagedKV, place: CachePlace) -> PagedKV:
        """See SharesPages."""
        return slots_part(pages, place)

    def plan(self, batch: ForwardBatch) -> ReferencePlan:
        """Return a plan without masks."""
        return ReferencePlan(min(batch.max_seqlen_q, MAX_QUERIES), batch.max_seqlen_k)

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        written = slot_mapping >= 0
        slots = slot_mapping[written]
        for new, cache in ((key, kv.key), (value, kv.value)):
            elements = as_elements(as_stored(new[written], cache.dtype))
            as_elements(cache).view(-1, *cache.shape[2:]).index_copy_(0, slots, elements)

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: ReferencePlan, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros."""
        table = batch.groups[spec.group].block_table
        cu_q = batch.cu_q_list
        out[cu_q[batch.num_seqs] :] = 0
        for row in range(batch.num_seqs):
            rows = slice(cu_q[row], cu_q[row + 1])
            new, seq_len = rows.stop - rows.start, batch.seq_lens_list[row]
            if new == 0 or seq_len == 0:
                out[rows] = 0
                continue
            first = 0 if spec.window is None else max(0, seq_len - new - spec.window + 1)
            key, value = (each.to(query.dtype) for each in _gather(kv, table[row], first, seq_len))
            for start in range(rows.start, rows.stop, MAX_QUERIES):
                # A part of the row is a row that ends earlier: its keys end with its own last token.
                part = slice(start, min(start + MAX_QUERIES, rows.stop))
                end = seq_len - (rows.stop - part.stop)
                begin = first if spec.window is None else max(0, end - (part.stop - start) - spec.window + 1)
                visible = slice(begin - first, end - first)
                out[part] = _attend_row(query[part], key[:, visible], value[:, visible], spec, plan)


def _gather(kv: PagedKV, table: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Return keys and values [kv_heads, end - first, head_dim] of positions [first, end) of one block table."""
    block_size = kv.key.shape[1]
    blocks = table[first // block_size : (end - 1) // block_size + 1]
    skipped = first % block_size
    rows = slice(skipped, skipped + end - first)
    key, value = (
        as_elements(cache).index_select(0, blocks).view(cache.dtype).flatten(0, 1)[rows].transpose(0, 1)
        for cache in (kv.key, kv.value)
    )
    return key, value


def _attend_row(query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, plan: ReferencePlan) -> Tensor:
    """Compute attention of one sequence's new tokens [Q, heads, D] and its keys and values [kv_heads, N, D]."""
    new, heads, width = query.shape
    shared = heads // len(key)
    # Group query heads by KV head: [kv_heads, shared, Q, D] against [kv_heads, 1, N, D].
    grouped = query.transpose(0, 1).reshape(len(key), shared, new, width)
    mask = _mask(new, key.shape[1], spec.window, query.device, plan)
    if spec.softcap is None and spec.sinks is None:
        if new == 1:
            attended = functional.scaled_dot_product_attention(
                grouped.transpose(1, 2), key[:, None], value[:, None], scale=spec.scale
            ).transpose(1, 2)
        else:
            expanded = (len(key), shared, -1, width)
            attended = functional.scaled_dot_product_attention(
                grouped,
                key[:, None].expand(expanded),
                value[:, None].expand(expanded),
                attn_mask=mask,
                scale=spec.scale,
            )
    else:
        bias = None if mask is None else torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        attended = eager_attention(grouped, key[:, None], value[:, None], bias, spec)
    return attended.reshape(heads, new, width).transpose(0, 1)


def _mask(new: int, keys: int, window: int | None, device: torch.device, plan: ReferencePlan) -> Tensor | None:
    """Return bool [new, keys], true if a new token sees a key; None if each token sees all keys."""
    # The only new token is the last one: it sees every key that was gathered.
    if new == 1:
        return None
    before = plan.max_keys if window is None else min(plan.max_keys, window - 1)
    if window not in plan.masks:
        # Keys are numbered relative to the first new token; earlier keys are negative.
        position = torch.arange(plan.max_new, device=device)[:, None]
        key = torch.arange(-before, plan.max_new, device=device)
        visible = key <= position
        plan.masks[window] = visible if window is None else visible & (key > position - window)
    return plan.masks[window][:new, before + new - keys : before + new]
