"""NativeAttention: the native kernels' attention as an attention backend.

A NativeDecoder calls the kernels itself and uses only the KV cache of this backend.

    bfloat16   key      [block][kv head][block_size / 16][head_dim / 2][16 tokens][2]
               value    [block][kv head][block_size / 2][head_dim][2]
    float32    key      [block][kv head][block_size / 16][head_dim][16 tokens]
               value    [block][kv head][block_size][head_dim]

Both are stored in tensors of a PagedKV's shape. Only the kernels can read their contents.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec, PagedKV, copy_blocks
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.layer_groups import CachePlace
from chairlift.model.device.page_prefault import lazy_zeros
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.threads import ThreadPool

BUFFER_KINDS = {torch.bfloat16: library.BF16, torch.float32: library.F32}
"""Dtype of queries, keys, values and the cache, all the same -> kind of buffer."""


class NativeAttention:
    """An AttentionBackend in bfloat16 and float32. A row's result has the same bits in every batch."""

    has_plain_kv = False
    supports_cuda_graph = False

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None:
        self._pool = pool
        self._instruction_set = instruction_set
        self._programs: dict[tuple[int, torch.dtype, int, int, int, int, int], AttentionProgram] = {}

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index. Raises ConfigError for an unsupported dtype or shape."""
        if dtype not in BUFFER_KINDS or block_size % library.KEY_TILE or head_dim % library.KEY_TILE:
            raise ConfigError(
                "the native KV cache needs bfloat16 or float32, and block_size and head_dim in multiples of "
                f"{library.KEY_TILE}; got {dtype}, {block_size} and {head_dim}",
                option="kernels",
            )
        shape = (num_blocks, block_size, kv_heads, head_dim)
        return [PagedKV(lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)) for _ in range(layers)]

    def part_of_pages(self, pages: PagedKV, place: CachePlace) -> PagedKV:
        """See SharesPages. Elements of all tokens of a block lie together, as the kernels expect those of a head."""
        num_blocks, block_size, _, page_width = pages.key.shape
        shape = place.shape
        size = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        strides = (block_size * page_width, shape.width, shape.head_dim, 1)
        first = block_size * place.first_element
        key, value = (each.as_strided(size, strides, first) for each in (pages.key, pages.value))
        return PagedKV(key, value, pages)

    def plan(self, batch: ForwardBatch) -> None:
        """Do nothing: the library plans a step by itself."""

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped.

        Raises MemoryError, and ValueError for other shapes and dtypes, with which the library would read elsewhere.
        """
        shape = (len(slot_mapping), *kv.key.shape[2:])
        if key.shape != shape or value.shape != shape or {key.dtype, value.dtype} != {kv.key.dtype}:
            dtype = _name(kv.key.dtype)
            raise ValueError(f"keys and values must be {dtype} {shape}, got {_described(key)}, {_described(value)}")
        if slot_mapping.dtype != torch.int64 or not slot_mapping.is_contiguous():
            raise ValueError(f"slot_mapping must be contiguous int64, got {_described(slot_mapping)}")
        key, value = (each if each.stride(2) == 1 else each.contiguous() for each in (key, value))
        _, block_size, kv_heads, head_dim = kv.key.shape
        code = library.load().store_kv(
            self._pool.handle, kv.key.data_ptr(), kv.value.data_ptr(), kv.key.dtype == torch.float32, block_size,
            kv_heads, head_dim, kv.key.stride(0), key.data_ptr(), key.stride(0), key.stride(1), value.data_ptr(),
            value.stride(0), value.stride(1), slot_mapping.data_ptr(), len(slot_mapping),
        )  # fmt: skip
        if code < 0:
            raise MemoryError("no memory for a step")

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros.

        Raises MemoryError, and ValueError for other shapes and dtypes, with which the library would read elsewhere.
        """
        tokens, heads, head_dim = query.shape
        _, block_size, kv_heads, cached_dim = kv.key.shape
        dtype = kv.key.dtype
        if (tokens, head_dim, heads % kv_heads) != (batch.num_tokens, cached_dim, 0) or query.dtype != dtype:
            raise ValueError(
                f"queries must be {_name(dtype)} [{batch.num_tokens}, a multiple of {kv_heads}, {cached_dim}], got "
                f"{_described(query)}"
            )
        if (out.shape, out.dtype) != (query.shape, query.dtype):
            raise ValueError(f"the output must be like the queries, {_described(query)}, got {_described(out)}")
        key = id(spec), dtype, heads, kv_heads, head_dim, block_size, kv.key.stride(0)
        program = self._programs.get(key)
        if program is None:
            program = AttentionProgram(self._pool, self._instruction_set, spec, *key[1:])
            self._programs[key] = program
        program.run(query.contiguous(), kv, batch, out)


class AttentionProgram:
    """One kind of attention as a program of the library, over the caller's queries and outputs."""

    def __init__(
        self, pool: ThreadPool, instruction_set: str, spec: AttentionSpec, dtype: torch.dtype, heads: int,
        kv_heads: int, head_dim: int, block_size: int, block_elements: int,
    ) -> None:  # fmt: skip
        self._native = native = library.load()
        self._decoder = library.DecoderHandle(pool.handle, instruction_set)
        self._handle = self._decoder.address
        self._spec = spec  # its id is a key of the backend
        self._sinks = None if spec.sinks is None else spec.sinks.float().contiguous()
        self._buffers = [
            native.add_buffer(self._handle, BUFFER_KINDS[dtype], heads * head_dim, library.BFLOAT16) for _ in "io"
        ]
        native.add_attention(
            self._handle, *self._buffers, 0, 0, heads, kv_heads, head_dim, block_size, block_elements, spec.scale,
            spec.softcap or 0.0, spec.window or 0, None if self._sinks is None else self._sinks.data_ptr(),
        )  # fmt: skip

    def run(self, query: Tensor, kv: PagedKV, batch: ForwardBatch, out: Tensor) -> None:
        """Attend contiguous query [T, heads, head_dim] to the cache, into out of the same shape. Raises MemoryError."""
        tokens, width = len(query), query.stride(0)
        if not out.is_contiguous():
            dense = torch.empty_like(query)
            self.run(query, kv, batch, dense)
            out.copy_(dense)
            return
        group = batch.groups[self._spec.group]
        groups = (kernel_structs.StepGroup * 1)(
            kernel_structs.StepGroup(group.block_table.data_ptr(), group.block_table.shape[1], None)
        )
        caches = (kernel_structs.StepCache * 1)(kernel_structs.StepCache(kv.key.data_ptr(), kv.value.data_ptr()))
        step = kernel_structs.Step(
            tokens, batch.num_seqs, None, None, batch.cu_seqlens_q.data_ptr(), batch.seq_lens.data_ptr(), groups, caches
        )
        queries, outputs = self._buffers
        code = self._native.run_on(
            self._handle, ctypes.byref(step), queries, query.data_ptr(), width, outputs, out.data_ptr(), width
        )
        if code < 0:
            raise MemoryError("no memory for a step")


def _described(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)} {tuple(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def buffer_view(decoder: int, buffer: int, tokens: int, dtype: torch.dtype) -> Tensor:
    """Return a buffer of numbers as [tokens, stride]; valid until the decoder allocates its buffers again."""
    stride = ctypes.c_size_t()
    address = library.load().buffer(decoder, buffer, ctypes.byref(stride))
    memory = (ctypes.c_uint8 * (tokens * stride.value)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tokens, -1)
