"""TritonAttention: paged attention by Triton kernels, for NVIDIA GPUs; Triton's interpreter runs them on the CPU.

Decode rows and chunks are two launches over the same cache, and decode rows that are split have a third. Nothing here
waits for the GPU or reads a tensor on the host, so that a CUDA graph can hold a step. Such a graph has the sizes of its
capture: num_decodes, num_seqs and num_tokens are padded by rows without tokens (seq_len 0) and slots of -1, and
max_seqlen_k is the longest row that it will serve.

    [num_blocks, block_size, kv_heads, head_dim]    keys, and values in a tensor of their own
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec, PagedKV, copy_blocks
from chairlift.model.attention.kv_pages import slots_part
from chairlift.model.attention.kv_splits import KVSplits, choose_kv_splits
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.layer_groups import CachePlace
from chairlift.model.device.kv_dtype import FLOAT8
from chairlift.model.kernels.cuda.attention_kernels import (
    REDUCE_SPLITS,
    WRITE_HEADS,
    decode_kernel,
    extend_kernel,
    reduce_kernel,
    write_kv_kernel,
)  # fmt: skip
from chairlift.model.kernels.cuda.attention_tiles import AttentionTiles, decode_tiles, extend_tiles, head_width
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of queries, keys and values; the cache has one of them, or FLOAT8."""

INTERPRETER_PROCESSORS = 16
"""Multiprocessors that are assumed where there is no GPU."""

LOG2_E = 1.4426950408889634


@dataclass(slots=True)
class TritonPlan:
    """Memory that the layers of one step share.

    Attributes:
        partials: by (heads, splits, head_dim): float32 sums [num_decodes, heads, splits, head_dim] of decode rows, and
            maxima and totals [num_decodes, heads, splits, 2]. A layer has read them before the next one writes.
    """

    partials: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scores:
    """How a layer's kernels turn a product of query and key into an exponent of base 2.

    Attributes:
        scale: factor of the product; with a cap, that of its tanh's exponent.
        cap: the cap in units of the exponent; 0 for none.
        window: keys that a token sees; 0 for all.
    """

    scale: float
    cap: float
    window: int

    @classmethod
    def of(cls, spec: AttentionSpec) -> "_Scores":
        """Return the numbers of a layer."""
        window = spec.window or 0
        if spec.softcap is None:
            return cls(spec.scale * LOG2_E, 0.0, window)
        # cap * tanh(x) is cap * (1 - 2 / (e**2x + 1)), with e**2x as a power of 2: see _visit_keys.
        return cls(spec.scale / spec.softcap * 2 * LOG2_E, spec.softcap * LOG2_E, window)


class TritonAttention:
    """AttentionBackend in Triton, in float32, bfloat16 and float16; float64 is refused when the cache is allocated.

    Its results are within 2e-6 of float64 for float32 inputs of size 1; 16-bit weights of values are rounded before
    their product.
    """

    has_plain_kv = True
    supports_cuda_graph = True

    def __init__(self, *, deterministic: bool = False) -> None:
        """Store the options.

        Args:
            deterministic: attend decode rows by the kernel of chunks, which visits a token's keys in one order. Then a
                token's bits depend on its own sequence alone: not on the other rows, nor on whether it is decoded or
                part of a chunk. Otherwise decode rows have a kernel of their own, which splits the keys by the size of
                the batch; that is faster, above all for few rows and long ones.
        """
        self._deterministic = deterministic

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index. Raises ConfigError for a dtype that no kernel has."""
        if dtype not in (*DTYPES, FLOAT8):
            raise ConfigError(
                f"attention_backend triton computes in float32, bfloat16 or float16, the model has {_name(dtype)}; "
                "set attention_backend to torch",
                option="attention_backend",
            )
        shape = (num_blocks, block_size, kv_heads, head_dim)
        return [
            PagedKV(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(layers)
        ]

    def part_of_pages(self, pages: PagedKV, place: CachePlace) -> PagedKV:
        """See SharesPages."""
        return slots_part(pages, place)

    def plan(self, batch: ForwardBatch) -> TritonPlan:
        """Return a plan without memory."""
        return TritonPlan()

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        tokens, kv_heads, head_dim = key.shape
        if tokens == 0:
            return
        key, value = _with_dense_heads(key), _with_dense_heads(value)
        write_kv_kernel[(tokens, -(-kv_heads // WRITE_HEADS))](
            key, value, kv.key, kv.value, slot_mapping, key.stride(0), value.stride(0), **_cache_layout(kv),
            KV_HEADS=kv_heads, HEAD_DIM=head_dim, WIDTH=head_width(head_dim), TILE_HEADS=WRITE_HEADS,
            **LAUNCH_OPTIONS,
        )  # fmt: skip

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: TritonPlan, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros."""
        query = _with_dense_heads(query)
        # The kernels know one stride of a tensor, that of its tokens.
        target = out if _has_dense_heads(out) else query.new_empty(query.shape)
        num_decodes = 0 if self._deterministic else batch.num_decodes
        if num_decodes:
            _attend_decodes(query, kv, batch, spec, plan, target)
        if batch.num_tokens > num_decodes:
            _attend_chunks(query, kv, batch, num_decodes, spec, target)
        if target is not out:
            out.copy_(target)


def _attend_decodes(
    query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: TritonPlan, out: Tensor
) -> None:
    _, heads, head_dim = query.shape
    kv_heads, scores = kv.key.shape[2], _Scores.of(spec)
    tiles = decode_tiles(_tile_dtype(query), head_dim, heads // kv_heads)
    parts = kv_heads * tiles.parts(heads // kv_heads)
    splits = choose_kv_splits(
        num_decodes=batch.num_decodes, kv_heads=parts, max_seqlen_k=batch.max_seqlen_k, window=spec.window,
        tile_keys=tiles.keys, num_processors=_num_processors(query.device),
    )  # fmt: skip
    is_split = splits.num_splits > 1
    partial, statistics = _partials(plan, batch, query, splits) if is_split else (out, out)
    table = batch.groups[spec.group].block_table
    decode_kernel[(parts, batch.num_decodes, splits.num_splits)](
        query, kv.key, kv.value, table, batch.seq_lens, out if spec.sinks is None else spec.sinks, out, partial,
        statistics, scores.window, scores.scale, scores.cap, splits.max_splits, splits.min_tiles,
        stride_table=table.stride(0), IS_SPLIT=is_split, **_layer_constants(query, kv, spec, tiles, out),
    )  # fmt: skip
    if is_split:
        reduce_kernel[(heads, batch.num_decodes)](
            partial, statistics, batch.seq_lens, out, scores.window, splits.max_splits, splits.min_tiles,
            splits.num_splits, STRIDE_OUT=out.stride(0), HEAD_DIM=head_dim, WIDTH=tiles.width,
            TILE_KEYS=tiles.keys, HAS_WINDOW=spec.window is not None, SPLITS=REDUCE_SPLITS, **LAUNCH_OPTIONS,
        )  # fmt: skip


def _attend_chunks(
    query: Tensor, kv: PagedKV, batch: ForwardBatch, first_row: int, spec: AttentionSpec, out: Tensor
) -> None:
    """Launch extend_kernel for the rows from first_row on, before which rows have one token each, and the padding."""
    _, heads, head_dim = query.shape
    kv_heads, scores = kv.key.shape[2], _Scores.of(spec)
    group, num_rows = heads // kv_heads, batch.num_seqs - first_row
    tiles = extend_tiles(_tile_dtype(query), head_dim, group, is_float8=kv.key.dtype == FLOAT8)
    # Rounding down each row's first tile leaves at most one empty tile a row; the padding is one more row.
    num_tiles = (batch.num_tokens - first_row) // (tiles.rows // tiles.heads) + num_rows + 1
    table = batch.groups[spec.group].block_table
    extend_kernel[(num_tiles, kv_heads * tiles.parts(group))](
        query, kv.key, kv.value, table, batch.cu_seqlens_q, batch.seq_lens,
        out if spec.sinks is None else spec.sinks, out, scores.window, scores.scale, scores.cap, first_row,
        num_rows, batch.num_tokens, stride_table=table.stride(0), **_layer_constants(query, kv, spec, tiles, out),
    )  # fmt: skip


def _layer_constants(
    query: Tensor, kv: PagedKV, spec: AttentionSpec, tiles: AttentionTiles, out: Tensor
) -> dict[str, Any]:
    """Return the compile-time constants and launch options that decode and extend share."""
    return _cache_layout(kv) | {
        "STRIDE_QUERY": query.stride(0), "STRIDE_OUT": out.stride(0), "GROUP": query.shape[1] // kv.key.shape[2],
        "HEADS": tiles.heads, "HEAD_DIM": query.shape[2], "WIDTH": tiles.width, "TILE_ROWS": tiles.rows,
        "TILE_KEYS": tiles.keys, "HAS_WINDOW": spec.window is not None, "HAS_CAP": spec.softcap is not None,
        "HAS_SINKS": spec.sinks is not None, "PRECISION": tiles.precision, "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages, **LAUNCH_OPTIONS,
    }  # fmt: skip


def _cache_layout(kv: PagedKV) -> dict[str, int]:
    block, slot, head, _ = kv.key.stride()
    return {"STRIDE_BLOCK": block, "STRIDE_SLOT": slot, "STRIDE_HEAD": head, "BLOCK_SIZE": kv.key.shape[1]}


def _partials(plan: TritonPlan, batch: ForwardBatch, query: Tensor, splits: KVSplits) -> tuple[Tensor, Tensor]:
    _, heads, head_dim = query.shape
    key = (heads, splits.num_splits, head_dim)
    if key not in plan.partials:
        shape = (batch.num_decodes, heads, splits.num_splits)
        plan.partials[key] = (
            torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device),
            torch.empty((*shape, 2), dtype=torch.float32, device=query.device),
        )
    return plan.partials[key]


def _tile_dtype(query: Tensor) -> torch.dtype:
    """Return the dtype whose tiles fit; the interpreter needs no registers, and tests the tiles of bfloat16."""
    return query.dtype if query.is_cuda else torch.bfloat16


def _has_dense_heads(tensor: Tensor) -> bool:
    return tensor.stride()[1:] == (tensor.shape[2], 1)


def _with_dense_heads(tensor: Tensor) -> Tensor:
    """Return a tensor [T, heads, head_dim] whose tokens are dense; their distance may be any."""
    return tensor if _has_dense_heads(tensor) else tensor.contiguous()


@functools.cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
