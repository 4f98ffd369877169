"""Program: the layers that a family described, as one list of operations of the C++ kernels.

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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import StepPlan
from chairlift.model.attention.base import PagedKV
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.native_attention import buffer_view
from chairlift.model.kernels.cpu.native_lm_head import Head
from chairlift.model.kernels.cpu.packing import PackedWeight
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.layers.causal_lm import ForwardContext
from chairlift.model.layers.decoder import Attention, DecoderLayer, DecoderSpec, Linear, RMSNorm
from chairlift.model.runner.input_batch import SlotBlockTables
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest

_FIRST_TOKENS = 256


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


class DecoderProgram:
    """The operations of one decoder over a cache of one block size.

    Owns: the library's decoder, its buffers, and what its operations point at.
    """

    def __init__(self, parts: DecoderSpec, pool: ThreadPool, instruction_set: str, block_size: int) -> None:
        self.block_size = block_size
        self._native = library.load()
        self._parts = parts
        self._hidden = parts.config.hidden_size
        self._kept: list[Tensor] = []
        self._first: Callable[[], Tensor | None] = lambda: None  # of the cache, which it does not keep alive
        self._caches: ctypes.Array[library.StepCache] = (library.StepCache * 0)()
        self._reserved = 0
        self._numbers: NDArray[np.int32] = np.empty(0, np.int32)  # of a plan
        self._blocks: Callable[[], NDArray[np.int32] | None] = lambda: None  # of the tables, likewise
        self._planned = library.Plan(block_size=block_size)
        self._planned_at = ctypes.byref(self._planned)
        self.head = Head(packed(parts.head), parts.config.vocab_size, parts.config.final_softcap)
        self._handle = self._native.decoder_new(pool.handle, instruction_set.encode())
        assert self._handle, f"the instruction set {instruction_set} was chosen, and is not here"
        self._quantized_buffers: dict[tuple[int, int], int] = {}
        self._buffers = self._add_buffers()
        self._add_operations()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._native.decoder_free(handle)

    def run_plan(self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV]) -> Tensor:
        """Run a plan; returns bfloat16 [T, H] that the next run overwrites. Raises as run_step does."""
        self.run_step(plan, tables, kv)
        return self._output[: plan.num_tokens]

    def score_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], wanted: LogitsRequest
    ) -> LMHeadOutput:
        """Run a plan, and say of its sample rows what is wanted, in one call. Raises as run_step does."""
        count = len(plan.sample_rows)
        self.head.ask(count, wanted)
        self.run_step(plan, tables, kv, ctypes.byref(self.head.call))
        return self.head.answer(count, wanted)

    def run_step(self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], head: Any = None) -> None:
        """Run a plan whose news the tables have, and a call of the head where there is one.

        Raises MemoryError, TokenOutOfRange, and RuntimeError for a plan that names what is not there.
        """
        planned, rows, tokens, samples = self._planned, plan.num_rows, plan.num_tokens, len(plan.sample_rows)
        if tokens > self._reserved:
            self._reserve(tokens)
        size = 3 * rows + tokens + samples
        if size > len(self._numbers):
            self._numbers = np.empty(2 * size, np.int32)
            planned.numbers = self._numbers.ctypes.data
        columns = plan.slots, plan.num_new_tokens, plan.start_positions, plan.input_ids, plan.sample_rows
        np.concatenate(columns, out=self._numbers[:size])
        planned.rows, planned.tokens, planned.samples = rows, tokens, samples
        if tables.blocks is not self._blocks():
            self._look_at(tables)
        planned.caches = self._caches_of(kv)
        code = self._native.run_plan(self._handle, self._planned_at, self._buffers.h, head)
        if code == library.NO_MEMORY:
            raise MemoryError("no memory for a step")
        if code == library.NO_SUCH_TOKEN:
            raise TokenOutOfRange(planned.refused, planned.vocab_size)
        if code < 0:
            raise RuntimeError("a step names a slot, a row, a token or a block that is not there")

    def _look_at(self, tables: SlotBlockTables) -> None:
        """Note where tables lie, which are seldom others than in the last step."""
        planned, blocks = self._planned, tables.blocks
        self._blocks = weakref.ref(blocks)
        planned.blocks, planned.last_sampled = blocks.ctypes.data, tables.last_sampled.ctypes.data
        planned.groups, planned.num_slots, planned.width = blocks.shape
        planned.vocab_size, planned.writes = tables.vocab_size, tables.writes

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
            batch.num_tokens, batch.num_seqs, input_ids.data_ptr(), batch.positions.data_ptr(),
            batch.cu_seqlens_q.data_ptr(),
            batch.seq_lens.data_ptr(), groups, self._caches_of(context.kv),
        )  # fmt: skip
        if self._native.run(self._handle, ctypes.byref(step)) < 0:
            raise MemoryError("no memory for a step")
        return self._output[: batch.num_tokens]

    def score(self, hidden: Tensor, wanted: LogitsRequest) -> LMHeadOutput:
        """Multiply hidden states [R, H] by the head, and say what is wanted. Raises MemoryError."""
        count = len(hidden)
        if hidden.dtype is not torch.bfloat16 or hidden.stride(1) != 1:
            hidden = hidden.to(torch.bfloat16).contiguous()
        self.head.ask(count, wanted)
        call = ctypes.byref(self.head.call)
        if self._native.head(self._handle, hidden.data_ptr(), hidden.stride(0), count, call) < 0:
            raise MemoryError("no memory for the head")
        return self.head.answer(count, wanted)

    def op_seconds(self) -> dict[str, float]:
        """Return seconds by kind of operation since the last call."""
        room = 32
        names, seconds = (ctypes.c_char_p * room)(), (ctypes.c_double * room)()
        count = self._native.spent(self._handle, names, seconds, room)
        return {(names[index] or b"").decode(): seconds[index] for index in range(count)}

    def _caches_of(self, kv: Sequence[PagedKV]) -> ctypes.Array[library.StepCache]:
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
        self._output = buffer_view(self._handle, self._buffers.h, tokens)[:, : self._hidden]

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
