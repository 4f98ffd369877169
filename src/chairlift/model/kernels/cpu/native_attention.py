"""NativeAttention: the native kernels' attention as an attention backend.

A NativeDecoder calls the kernels itself and uses only the KV cache of this backend.

    key      [block][kv head][block_size / 16][head_dim / 2][16 tokens][2]
    value    [block][kv head][block_size / 2][head_dim][2]

Both are stored in tensors of a PagedKV's shape. Only the kernels can read their contents.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec, ForwardBatch, PagedKV, copy_blocks
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.runner.page_prefault import lazy_zeros


class NativeAttention:
    """An AttentionBackend in bfloat16. A row's result has the same bits in every batch."""

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None:
        self._pool = pool
        self._instruction_set = instruction_set

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index. Raises ConfigError for an unsupported dtype or shape."""
        if dtype != torch.bfloat16 or block_size % library.KEY_TILE or head_dim % library.KEY_TILE:
            raise ConfigError(
                f"the native KV cache needs bfloat16, and block_size and head_dim in multiples of {library.KEY_TILE}; "
                f"got {dtype}, {block_size} and {head_dim}",
                option="kernels",
            )
        shape = (num_blocks, block_size, kv_heads, head_dim)
        return [PagedKV(lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)) for _ in range(layers)]

    def plan(self, batch: ForwardBatch) -> None:
        """Do nothing: the library plans a step by itself."""

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        written = slot_mapping >= 0
        slots, blocks, block_size, (heads, dim) = slot_mapping[written], *kv.key.shape[:2], kv.key.shape[2:]
        block, offset = slots // block_size, slots % block_size
        keys = kv.key.view(blocks, heads, block_size // library.KEY_TILE, dim // 2, library.KEY_TILE, 2)
        tile, tile_offset = offset // library.KEY_TILE, offset % library.KEY_TILE
        keys[block, :, tile, :, tile_offset] = key[written].view(-1, heads, dim // 2, 2)
        values = kv.value.view(blocks, heads, block_size // 2, dim, 2)
        values[block, :, offset // 2, :, offset % 2] = value[written]

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros."""
        native = library.load()
        tokens, heads, dim = query.shape
        _, block_size, kv_heads, _ = kv.key.shape
        decoder = native.decoder_new(self._pool.handle, self._instruction_set.encode())
        sinks = None if spec.sinks is None else spec.sinks.float().contiguous()
        try:
            queries, attended = (
                native.add_buffer(decoder, library.BF16, heads * dim, library.BFLOAT16) for _ in range(2)
            )
            native.add_attention(
                decoder, queries, attended, 0, 0, heads, kv_heads, dim, block_size, spec.scale, spec.softcap or 0.0,
                spec.window or 0, None if sinks is None else sinks.data_ptr(),
            )  # fmt: skip
            if native.reserve(decoder, tokens) < 0:
                raise MemoryError(f"no memory for a step of {tokens} tokens")
            buffer_view(decoder, queries, tokens)[:, : heads * dim] = query.reshape(tokens, -1)
            group = batch.groups[spec.group]
            groups = (library.StepGroup * 1)(
                library.StepGroup(group.block_table.data_ptr(), group.block_table.shape[1], None)
            )
            caches = (library.StepCache * 1)(library.StepCache(kv.key.data_ptr(), kv.value.data_ptr()))
            step = library.Step(
                tokens,
                batch.num_seqs,
                None,
                None,
                batch.cu_seqlens_q.data_ptr(),
                batch.seq_lens.data_ptr(),
                groups,
                caches,
            )
            if native.run(decoder, ctypes.byref(step)) < 0:
                raise MemoryError("no memory for a step")
            out.copy_(buffer_view(decoder, attended, tokens)[:, : heads * dim].view(query.shape))
        finally:
            native.decoder_free(decoder)


def buffer_view(decoder: int, buffer: int, tokens: int) -> Tensor:
    """Return a bfloat16 buffer as [tokens, stride]; valid until the decoder allocates its buffers again."""
    stride = ctypes.c_size_t()
    address = library.load().buffer(decoder, buffer, ctypes.byref(stride))
    memory = (ctypes.c_uint16 * (tokens * stride.value // 2)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(tokens, -1)
