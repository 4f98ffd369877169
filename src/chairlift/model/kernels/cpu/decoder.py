"""NativeDecoder: the layers that a family described, as one list of operations of the C++ kernels.

    embed → [x] ┬→ norm → [n] → linear → [p] → heads → [q], cache → attend → [a] → linear ─(+)─┬→ norm → [n] → gated
                └──────────────────────────────────────────────────────────────────────────────┘   linear → [m] → ...

x and p are float32, q, the cache and what comes out at the end, [h], bfloat16. n, a and m are what products begin with:
bfloat16, or with int8 weights float32, which is quantised before each product; a norm goes on into that row by row, and
keeps no more than the row of n that it works on. Where a norm stands behind attention or
MLP, the linear operation writes to [y], and the norm adds that to [x].
"""

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.attention.base import KV
from chairlift.model.causal_lm import ForwardContext, LayerGroups
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.attention import buffer_rows
from chairlift.model.kernels.cpu.packing import PackedWeight
from chairlift.model.kernels.cpu.threads import Pool
from chairlift.model.layers import Attention, DecoderLayer, DecoderParts, Linear, RMSNorm
from chairlift.model.scored import Scored, Wanted

_FIRST_TOKENS = 256
_BEST = np.dtype([("value", np.float32), ("id", np.int32)])


class NativeDecoder:
    """A CausalLM (causal_lm.py) on the kernels.

    Attributes:
        groups, vocab_size, num_kv_heads, head_dim: as the protocol says.
        dtype: bfloat16, of hidden states and cache.
    """

    def __init__(self, parts: DecoderParts, pool: Pool, instruction_set: str) -> None:
        """Take parts whose matrices are PackedWeights and whose rotation tables are float32."""
        config = parts.config
        self.groups = LayerGroups.of(config.layer_windows)
        self.vocab_size = config.vocab_size
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.dtype = torch.bfloat16
        self._parts = parts
        self._pool = pool
        self._instruction_set = instruction_set
        self._softcap = config.final_softcap
        self._program: Program | None = None

    def padded(self, num_tokens: int) -> int:
        """Return the same number: every number of rows is as good as its neighbours."""
        return num_tokens

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers.

        Returns normed states [T, H], good until the next call.
        """
        block_size = context.kv[0].key.shape[1]
        if self._program is None or self._program.block_size != block_size:
            self._program = Program(self._parts, self._pool, self._instruction_set, block_size)
        return self._program.run(input_ids, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [R, H] into logits float32 [R, V]."""
        assert self._program is not None, "logits before the first step"
        return self.head(hidden, Wanted(np.ones(len(hidden), bool))).logits

    def head(self, hidden: Tensor, wanted: Wanted) -> Scored:
        """Say of R hidden states what is wanted of their logits, float32; what is not wanted is written nowhere."""
        assert self._program is not None, "logits before the first step"
        weight, count, capped = packed(self._parts.head), len(hidden), self._capped
        width = weight.struct.panels * library.PANEL
        logits = torch.empty(int(np.count_nonzero(wanted.kept)), width, dtype=torch.float32, device="cpu")
        values, ids = self._program.head(hidden, weight, wanted, logits)
        peaks, allowed, best = torch.from_numpy(values[:count]), torch.from_numpy(values[:0]), ids[:0]
        if wanted.masks is not None:
            rows = count + wanted.masked
            allowed, best = torch.from_numpy(values[rows]), np.where(ids[rows] < self.vocab_size, ids[rows], 0)
        return Scored(capped(peaks), ids[:count], capped(allowed), best, capped(logits[:, : self.vocab_size]))

    def _capped(self, logits: Tensor) -> Tensor:
        """What is banned stays so."""
        if self._softcap is None or not logits.numel():
            return logits
        return (torch.tanh(logits / self._softcap) * self._softcap).masked_fill_(logits == -torch.inf, -torch.inf)

    def spent(self) -> dict[str, float]:
        """Return seconds of one thread by kind of operation, since the last call."""
        return {} if self._program is None else self._program.spent()


@dataclass(frozen=True, slots=True)
class _Buffers:
    x: int
    n: int
    p: int
    q: int
    a: int
    m: int
    h: int
    y: int | None


class Program:
    """The operations of one decoder over a cache of one block size.

    Owns: the library's decoder, its buffers, and what its operations point at.
    """

    def __init__(self, parts: DecoderParts, pool: Pool, instruction_set: str, block_size: int) -> None:
        self.block_size = block_size
        self._native = library.load()
        self._parts = parts
        self._hidden = parts.config.hidden_size
        self._kept: list[Tensor] = []
        self._first: Callable[[], Tensor | None] = lambda: None  # of the cache, which it does not keep alive
        self._caches: ctypes.Array[library.StepCache] = (library.StepCache * 0)()
        self._reserved = 0
        self._handle = self._native.decoder_new(pool.handle, instruction_set.encode())
        assert self._handle, f"the instruction set {instruction_set} was chosen, and is not here"
        self._quantized_buffers: dict[tuple[int, int], int] = {}
        self._buffers = self._add_buffers()
        self._add_operations()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._native.decoder_free(handle)

    def run(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run a step; returns bfloat16 [T, H] that the next run overwrites. Raises MemoryError."""
        batch = context.batch
        if batch.num_tokens > self._reserved:
            self._reserve(batch.num_tokens)
        groups = (library.StepGroup * len(batch.groups))()
        for to, group in zip(groups, batch.groups, strict=True):
            to.block_table, to.max_blocks = group.block_table.data_ptr(), group.block_table.shape[1]
            to.slots = group.slot_mapping.data_ptr()
        step = library.Step(
            batch.num_tokens, batch.num_seqs, input_ids.data_ptr(), batch.positions.data_ptr(), batch.cu_q.data_ptr(),
            batch.seq_lens.data_ptr(), groups, self._caches_of(context.kv),
        )  # fmt: skip
        if self._native.run(self._handle, ctypes.byref(step)) < 0:
            raise MemoryError("no memory for a step")
        return self._output[: batch.num_tokens]

    def head(
        self, hidden: Tensor, weight: PackedWeight, wanted: Wanted, logits: Tensor
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Multiply hidden states [R, H] by the head.

        Logits [N, panels * 64] of the rows that are kept are written. Returns the largest of each row and their ids,
        [2 * R]: of all, then of those that are allowed, where a row has a mask; meaningless where it has none.
        """
        count = len(hidden)
        if hidden.dtype is not torch.bfloat16 or hidden.stride(1) != 1:
            hidden = hidden.to(torch.bfloat16).contiguous()
        best = np.empty(2 * count, _BEST)
        places = np.zeros((count, 2), np.uint64)  # HeadRow
        if len(logits):
            places[wanted.kept, 0] = logits.data_ptr() + np.arange(len(logits)) * logits.stride(0) * logits.itemsize
        words, masks = 0, wanted.masks
        if masks is not None and len(masks.places):
            bits = np.ascontiguousarray(masks.bits)
            words = bits.shape[1]
            places[wanted.masked, 1] = bits.ctypes.data + np.arange(len(bits)) * bits.strides[0]
        done = self._native.head(
            self._handle, hidden.data_ptr(), hidden.stride(0), count, ctypes.byref(weight.struct), places.ctypes.data,
            words, best.ctypes.data,
        )  # fmt: skip
        if done < 0:
            raise MemoryError("no memory for the head")
        return best["value"].copy(), best["id"].astype(np.int64)

    def spent(self) -> dict[str, float]:
        """Return seconds by kind of operation since the last call."""
        room = 32
        names, seconds = (ctypes.c_char_p * room)(), (ctypes.c_double * room)()
        count = self._native.spent(self._handle, names, seconds, room)
        return {(names[index] or b"").decode(): seconds[index] for index in range(count)}

    def _caches_of(self, kv: Sequence[KV]) -> ctypes.Array[library.StepCache]:
        """Return the addresses of a cache, which is allocated as a whole and nearly always the one of the last step."""
        first = kv[0].key
        if self._first() is not first:
            self._first, self._caches = weakref.ref(first), (library.StepCache * len(kv))()
            for to, each in zip(self._caches, kv, strict=True):
                to.keys, to.values = each.key.data_ptr(), each.value.data_ptr()
        return self._caches

    def _reserve(self, tokens: int) -> None:
        tokens = max(tokens, _FIRST_TOKENS, 2 * self._reserved)
        if self._native.reserve(self._handle, tokens) < 0:
            self._reserved = 0
            raise MemoryError(f"no memory for a step of {tokens} tokens")
        self._reserved = tokens
        self._output = buffer_rows(self._handle, self._buffers.h, tokens)[:, : self._hidden]

    def _add_buffers(self) -> _Buffers:
        parts, native = self._parts, self._native
        config = parts.config

        def add(kind: int, width: int) -> int:
            index: int = native.add_buffer(self._handle, kind, width, library.BFLOAT16)
            return index

        inner = config.num_heads * config.head_dim
        projected = inner + 2 * config.num_kv_heads * config.head_dim
        is_bfloat16 = packed(parts.head).struct.kind == library.BFLOAT16
        kind = library.HALVES if is_bfloat16 else library.FLOATS
        n = add(kind, self._hidden)
        behind = any(layer.after_attention or layer.after_mlp for layer in parts.layers)
        return _Buffers(
            x=add(library.FLOATS, self._hidden), n=n, p=add(library.FLOATS, projected), q=add(library.HALVES, inner),
            a=add(kind, inner), m=add(kind, config.intermediate_size),
            h=n if is_bfloat16 else add(library.HALVES, self._hidden),
            y=add(library.FLOATS, self._hidden) if behind else None,
        )  # fmt: skip

    def _add_operations(self) -> None:
        parts, native, on = self._parts, self._native, self._buffers
        table, packed_table = None, None
        if isinstance(parts.table, PackedWeight):
            packed_table = ctypes.byref(parts.table.struct)
        else:
            table = self._keep(parts.table, torch.bfloat16)
        factor = 1.0 if parts.embed_scale is None else torch.tensor(parts.embed_scale, dtype=torch.bfloat16).item()
        native.add_embed(self._handle, table, packed_table, self._hidden, factor, on.x)
        weights = [packed(linear.weight) for linear in linears(parts.layers)]
        after = {id(one): following for one, following in pairwise([*weights, packed(parts.head)])}
        for layer in parts.layers:
            self._add_layer(layer, after)
        self._norm(parts.norm, on.x, on.h)

    def _add_layer(self, layer: DecoderLayer, after: dict[int, PackedWeight]) -> None:
        on, attention, mlp = self._buffers, layer.attention, layer.mlp
        normed = self._normed(layer.before_attention, attention.projection)
        self._linear(attention.projection, normed, library.STORE, on.p, after)
        self._attention(attention)
        self._added(attention.output, on.a, layer.after_attention, after)
        normed = self._normed(layer.before_mlp, mlp.gate_up)
        self._linear(mlp.gate_up, normed, library.GATED, on.m, after, library.ACTIVATIONS[mlp.activation])
        self._added(mlp.down, on.m, layer.after_mlp, after)

    def _added(self, linear: Linear, source: int, norm: RMSNorm | None, after: dict[int, PackedWeight]) -> None:
        """A projection that is added to the residual, through a norm where there is one."""
        on = self._buffers
        quantized = self._quantized(source, linear)
        if quantized is not None:
            self._native.add_quantize(self._handle, source, quantized)
            source = quantized
        if norm is None:
            self._linear(linear, source, library.ADD, on.x, after)
            return
        assert on.y is not None, "a norm behind without its buffer"
        self._linear(linear, source, library.STORE, on.y, after)
        self._norm(norm, on.y, on.x, added=True)

    def _normed(self, norm: RMSNorm, linear: Linear) -> int:
        """Norm the states for a projection; returns the buffer that it finds them in."""
        on = self._buffers
        quantized = self._quantized(on.n, linear)
        self._norm(norm, on.x, on.n, quantized=quantized)
        return on.n if quantized is None else quantized

    def _norm(
        self, norm: RMSNorm, source: int, target: int, *, added: bool = False, quantized: int | None = None
    ) -> None:  # fmt: skip
        weight, to = self._keep(norm.weight), -1 if quantized is None else quantized
        self._native.add_norm(self._handle, source, weight, norm.eps, target, added, to)

    def _quantized(self, source: int, linear: Linear) -> int | None:
        """Return the buffer for the rows of another as a projection wants them quantised; None where it does not."""
        struct = packed(linear.weight).struct
        if struct.kind == library.BFLOAT16:
            return None
        key = source, struct.kind
        if key not in self._quantized_buffers:
            buffer = self._native.add_buffer(self._handle, library.QUANTIZED, struct.steps * 4, struct.kind)
            self._quantized_buffers[key] = buffer
        return self._quantized_buffers[key]

    def _linear(
        self, linear: Linear, source: int, mode: int, target: int, after: dict[int, PackedWeight], activation: int = 0
    ) -> None:
        weight, bias = packed(linear.weight), None
        if linear.bias is not None:
            placed = gated_rows(linear.bias) if mode == library.GATED else linear.bias
            padding = weight.struct.panels * library.PANEL - len(placed)
            bias = self._keep(torch.nn.functional.pad(placed, (0, padding)))
        self._native.add_linear(
            self._handle, source, ctypes.byref(weight.struct), bias, mode, activation,
            ctypes.byref(after[id(weight)].struct), target,
        )  # fmt: skip

    def _attention(self, attention: Attention) -> None:
        on, spec, config = self._buffers, attention.spec, self._parts.config
        assert spec.scale > 0, "the largest score stays the largest"
        shape = (attention.num_heads, attention.num_kv_heads, config.head_dim, self.block_size)
        norm, eps = None, 0.0
        if attention.head_norm is not None:
            norm, eps = self._keep(attention.head_norm.weight), attention.head_norm.eps
        rope = self._parts.ropes[spec.window is not None]
        self._native.add_heads(
            self._handle, on.p, on.q, spec.group, attention.kv_index, *shape, norm, eps, self._keep(rope.cos),
            self._keep(rope.sin),
        )  # fmt: skip
        self._native.add_attend(
            self._handle, on.q, on.a, spec.group, attention.kv_index, *shape, spec.scale, spec.softcap or 0.0,
            spec.window or 0, None if spec.sinks is None else self._keep(spec.sinks),
        )  # fmt: skip

    def _keep(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Return the address of a tensor in this dtype, which lives as long as the program."""
        self._kept.append(tensor.to(dtype).contiguous())
        return self._kept[-1].data_ptr()


def packed(matrix: Tensor | PackedWeight) -> PackedWeight:
    """Return the matrix, which was packed."""
    assert isinstance(matrix, PackedWeight), "a decoder on the kernels has packed weights"
    return matrix


def gated_rows(both: Tensor) -> Tensor:
    """Return gates and ups [2 I, ...] as a gated pair's panels have them: 16 gates, 16 ups, and so on."""
    gates, ups = both.chunk(2)
    padding = -len(gates) % 16
    pad = [0] * (2 * (gates.ndim - 1)) + [0, padding]
    runs = [torch.nn.functional.pad(each, pad).view(-1, 16, *gates.shape[1:]) for each in (gates, ups)]
    return torch.stack(runs, 1).flatten(0, 2)


def linears(layers: Sequence[DecoderLayer]) -> Iterator[Linear]:
    """Yield the projections in the order in which a step meets them."""
    for layer in layers:
        yield from (layer.attention.projection, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
