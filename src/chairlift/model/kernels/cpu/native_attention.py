"""NativeAttention: the kernels' attention alone, as a backend; a NativeDecoder's layers use its cache without it.

    key      [block][kv head][block_size / 16][head_dim / 2][16 tokens][2]
    value    [block][kv head][block_size / 2][head_dim][2]

Both lie in tensors of the shape that every KV has; their inside is for the kernels alone.
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
    """An AttentionBackend in bfloat16 whose rows have the same bits in every batch."""

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None:
        self._pool = pool
        self._instruction_set = instruction_set

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Make one zeroed KV for each layer index. Raises ConfigError for a shape that the kernels cannot have."""
        if dtype != torch.bfloat16 or block_size % library.KEY_TILE or head_dim % library.KEY_TILE:
            raise ConfigError(
                f"the native cache has bfloat16, and blocks and heads in multiples of {library.KEY_TILE}; "
                f"not {dtype}, {block_size} and {head_dim}",
                option="kernels",
            )
        shape = (num_blocks, block_size, kv_heads, head_dim)
        return [PagedKV(lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)) for _ in range(layers)]

    def plan(self, batch: ForwardBatch) -> None:
        """Nothing to prepare: the library plans a step by itself."""

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        real = slot_mapping >= 0
        slots, blocks, block_size, (heads, dim) = slot_mapping[real], *kv.key.shape[:2], kv.key.shape[2:]
        block, offset = slots // block_size, slots % block_size
        keys = kv.key.view(blocks, heads, block_size // library.KEY_TILE, dim // 2, library.KEY_TILE, 2)
        tile, within = offset // library.KEY_TILE, offset % library.KEY_TILE
        keys[block, :, tile, :, within] = key[real].view(-1, heads, dim // 2, 2)
        values = kv.value.view(blocks, heads, block_size // 2, dim, 2)
        values[block, :, offset // 2, :, offset % 2] = value[real]

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, all as they were before: pairs int [C, 2] of (from, to)."""
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
            asked, answered = (
                native.add_buffer(decoder, library.HALVES, heads * dim, library.BFLOAT16) for _ in range(2)
            )
            native.add_attend(
                decoder, asked, answered, 0, 0, heads, kv_heads, dim, block_size, spec.scale, spec.softcap or 0.0,
                spec.window or 0, None if sinks is None else sinks.data_ptr(),
            )  # fmt: skip
            if native.reserve(decoder, tokens) < 0:
                raise MemoryError(f"no memory for a step of {tokens} tokens")
            buffer_view(decoder, asked, tokens)[:, : heads * dim] = query.reshape(tokens, -1)
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
            out.copy_(buffer_view(decoder, answered, tokens)[:, : heads * dim].view(query.shape))
        finally:
            native.decoder_free(decoder)


def buffer_view(decoder: int, buffer: int, tokens: int) -> Tensor:
    """Return a buffer of bfloat16 as [tokens, stride]; good as long as the decoder's buffers are."""
    stride = ctypes.c_size_t()
    address = library.load().buffer(decoder, buffer, ctypes.byref(stride))
    memory = (ctypes.c_uint16 * (tokens * stride.value // 2)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(tokens, -1)
