"""DecoderProgram: an architecture's layers as a list of operations of the native kernels, over numbered buffers.

    embed → [x] ┬→ norm → [n] → linear → [p] → rope_cache → [q], KV cache → attention → [a] → linear ─(+)─┐
                └─────────────────────────────────────────────────────────────────────────────────────────┤
                ┌─────────────────────────────────────────────────────────────────────────────────────────┘
            [x] ┴→ norm → [n] → gated linear → [m] → linear ─(+)→ [x] → next layer, or norm → [h]

x and p are float32. q, the cache and h are of the decoder's dtype, bfloat16 or float32. n, a and m are the inputs of
linear operations: the same, or for a quantised weight float32, which is quantised before each product; a model may have
both. A norm that quantises does so row by row and keeps only its current row of n. For a layer with a norm after
attention or MLP, the linear operation writes [y], and the norm adds its result to [x]. A layer without a norm before
them converts [x] to [n]. With a multiplier of what layers add, [x] is divided by it: norms of [x] are the same with
another eps, and nothing else reads it.

A layer with experts beside its MLP sums both in [z]. Inputs of layers beside the hidden state are made once, in a
buffer of all layers; native_layer_inputs.py has their operations.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import StepPlan
from chairlift.model.attention.base import PagedKV
from chairlift.model.backends.native_attention import BUFFER_KINDS, buffer_view
from chairlift.model.backends.native_experts import NativeExperts
from chairlift.model.backends.native_layer_inputs import InputBuffers
from chairlift.model.backends.native_lm_head import LMHead, score
from chairlift.model.backends.native_state_layers import NativeStates, StateBuffers, add_state_layer, output_width
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.packing import (
    PackedWeight,
    packed_weight,
    padded_bias,
    padded_inputs,
    row_quantization,
    stored_width,
)
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.kernels.cpu.weight_kinds import DTYPES
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.layers.decoder import Attention, DecoderLayer, DecoderSpec
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.mlp import MLP, MLPWithExperts
from chairlift.model.layers.per_layer_inputs import SUM_SCALE, LayerInput, PerLayerInputs
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from chairlift.model.weights.linear_weight import LinearWeight

_MIN_RESERVED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Numbers of the buffers that do not depend on weights; see the module's diagram."""

    x: int
    p: int
    q: int
    h: int
    y: int | None
    z: int | None


class DecoderProgram:
    """The operations of one decoder over a KV cache of one block size, distance of blocks, and dtype.

    Attributes:
        block_size: tokens of a block.
        block_elements: elements from a block of the cache to the next one.

    Owns: the library's decoder, its buffers, and the memory that its operations point to.
    """

    def __init__(
        self, parts: DecoderSpec, pool: ThreadPool, instruction_set: str, dtype: torch.dtype, block_size: int,
        block_elements: int,
    ) -> None:  # fmt: skip
        self.block_size = block_size
        self.block_elements = block_elements
        self._dtype = dtype
        self._native = library.load()
        self._parts = parts
        self._hidden = parts.config.hidden_size
        self._tensors: list[Tensor] = []  # keeps the operations' memory alive
        self._first_key: Callable[[], Tensor | None] = lambda: None  # weak reference: the KV cache may be freed
        self._caches: ctypes.Array[kernel_structs.StepCache] = (kernel_structs.StepCache * 0)()
        self._reserved_tokens = 0
        self._packed_inputs: NDArray[np.int32] = np.empty(0, np.int32)
        self._block_tables: Callable[[], NDArray[np.int32] | None] = lambda: None  # weak reference, too
        self._plan = kernel_structs.Plan(block_size=block_size)
        self._plan_reference = ctypes.byref(self._plan)
        self.lm_head = LMHead(packed_weight(parts.head), parts.config.vocab_size, parts.config.final_softcap, dtype)
        self._decoder = library.DecoderHandle(pool.handle, instruction_set)
        self._handle = self._decoder.address
        self._inputs: dict[tuple[str, int], int] = {}
        self._quantized_buffers: dict[tuple[int, int, int], int] = {}
        self._buffers = self._add_buffers()
        self._input_buffers: InputBuffers | None = None
        self._states: tuple[StateCache, NativeStates] | None = None
        self._state_buffers: StateBuffers | None = None
        if state_configs := [layer for layer in parts.config.state_layers if layer is not None]:
            self._state_buffers = StateBuffers.add(self._handle, state_configs)
        self._experts = NativeExperts(self._handle, pool, dtype, self._hidden)
        self._add_operations()

    def run_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], states: StateCache | None = None
    ) -> Tensor:
        """Run a plan; return hidden states [T, H] that the next run overwrites. Raises as run_step does."""
        self.run_step(plan, tables, kv, states)
        return self._output[: plan.num_tokens]

    def score_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], request: LogitsRequest,
        states: StateCache | None = None,
    ) -> LMHeadOutput:  # fmt: skip
        """Run a plan and the lm_head on its samples, in one call. Raises as run_step does."""
        count = plan.num_samples
        self.lm_head.prepare(count, request)
        self.run_step(plan, tables, kv, states, ctypes.byref(self.lm_head.call))
        return self.lm_head.output(count, request)

    def run_step(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], states: StateCache | None = None,
        lm_head: Any = None,
    ) -> None:  # fmt: skip
        """Run a plan that was applied to the tables, and the call `lm_head` if it is not None.

        `states` are those of a model that has some; the plan's loads were copied.

        Raises MemoryError, TokenOutOfRange, and RuntimeError for a slot, row or block that does not exist.
        """
        call, rows, tokens, sample_tokens = self._plan, plan.num_rows, plan.num_tokens, plan.sample_tokens
        if tokens > self._reserved_tokens:
            self._reserve(tokens)
        size = 3 * rows + tokens + len(sample_tokens)
        if size > len(self._packed_inputs):
            self._packed_inputs = np.empty(2 * size, np.int32)
            call.packed_inputs = self._packed_inputs.ctypes.data
        columns = plan.slots, plan.num_new_tokens, plan.start_positions, plan.input_ids, sample_tokens
        np.concatenate(columns, out=self._packed_inputs[:size])
        call.num_rows, call.num_tokens, call.num_samples = rows, tokens, len(sample_tokens)
        if tables.blocks is not self._block_tables():
            self._set_tables(tables)
        call.caches = self._caches_of(kv)
        if states is not None:
            self._states_of(states).set_plan(call, plan.state_saves)
        code = self._native.run_plan(self._handle, self._plan_reference, self._buffers.h, lm_head)
        if code == library.OUT_OF_MEMORY:
            raise MemoryError("no memory for a step")
        if code == library.INVALID_TOKEN:
            raise TokenOutOfRange(call.invalid_token, call.vocab_size)
        if code < 0:
            raise RuntimeError("a step names a slot, a row, a token or a block that does not exist")

    def _set_tables(self, tables: SlotBlockTables) -> None:
        """Set the addresses of the block tables, which rarely change between steps."""
        call, blocks = self._plan, tables.blocks
        self._block_tables = weakref.ref(blocks)
        call.block_tables, call.last_sampled = blocks.ctypes.data, tables.last_sampled.ctypes.data
        call.num_groups, call.num_slots, call.max_blocks = blocks.shape
        call.vocab_size, call.writes_kv = tables.vocab_size, tables.writes

    def run(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run a step; return hidden states [T, H] that the next run overwrites. Raises MemoryError."""
        batch = context.batch
        if batch.num_tokens > self._reserved_tokens:
            self._reserve(batch.num_tokens)
        groups = (kernel_structs.StepGroup * len(batch.groups))()
        for to, group in zip(groups, batch.groups, strict=True):
            to.block_table, to.max_blocks = group.block_table.data_ptr(), group.block_table.shape[1]
            to.slot_mapping = group.slot_mapping.data_ptr()
        step = kernel_structs.Step(
            batch.num_tokens, batch.num_seqs, input_ids.data_ptr(), batch.positions.data_ptr(),
            batch.cu_seqlens_q.data_ptr(), batch.seq_lens.data_ptr(), groups, self._caches_of(context.kv),
        )  # fmt: skip
        if context.states is not None and context.state_step is not None:
            self._states_of(context.states).set_step(step, context.state_step)
        if self._native.run(self._handle, ctypes.byref(step)) < 0:
            raise MemoryError("no memory for a step")
        return self._output[: batch.num_tokens]

    def score(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """Compute the requested lm_head output of hidden states [R, H]. Raises MemoryError."""
        return score(self._handle, self.lm_head, hidden, request)

    def op_seconds(self) -> dict[str, float]:
        """Return the seconds by kind of operation since the last call."""
        capacity = 32
        names, seconds = (ctypes.c_char_p * capacity)(), (ctypes.c_double * capacity)()
        count = self._native.op_seconds(self._handle, names, seconds, capacity)
        return {(names[index] or b"").decode(): seconds[index] for index in range(count)}

    def _caches_of(self, kv: Sequence[PagedKV]) -> ctypes.Array[kernel_structs.StepCache]:
        """Return the addresses of a KV cache. All its layers are allocated together, so the first key identifies it."""
        first_key = kv[0].key
        if self._first_key() is not first_key:
            self._first_key, self._caches = weakref.ref(first_key), (kernel_structs.StepCache * len(kv))()
            for to, each in zip(self._caches, kv, strict=True):
                to.keys, to.values = each.key.data_ptr(), each.value.data_ptr()
        return self._caches

    def _states_of(self, cache: StateCache) -> NativeStates:
        if self._states is None or self._states[0] is not cache:
            self._states = cache, NativeStates(cache)
        return self._states[1]

    def _reserve(self, tokens: int) -> None:
        tokens = max(tokens, _MIN_RESERVED_TOKENS, 2 * self._reserved_tokens)
        if self._native.reserve(self._handle, tokens) < 0:
            self._reserved_tokens = 0
            raise MemoryError(f"no memory for a step of {tokens} tokens")
        self._reserved_tokens = tokens
        self._output = buffer_view(self._handle, self._buffers.h, tokens, self._dtype)[:, : self._hidden]

    def _add_buffer(self, kind: int, width: int) -> int:
        index: int = self._native.add_buffer(self._handle, kind, width, library.BFLOAT16)
        return index

    def _add_buffers(self) -> _Buffers:
        config, own, add = self._parts.config, BUFFER_KINDS[self._dtype], self._add_buffer
        query_width = config.num_heads * config.max_head_dim
        qkv_width = max(stored_width(packed_weight(layer.mixer.projection.weight)) for layer in self._parts.layers)
        layers = self._parts.layers
        has_post_norm = any(layer.after_attention or layer.after_mlp or layer.layer_input for layer in layers)
        has_both = any(isinstance(layer.mlp, MLPWithExperts) for layer in layers)
        return _Buffers(
            x=add(library.F32, self._hidden), p=add(library.F32, qkv_width), q=add(own, query_width),
            h=self._input("n", own), y=add(library.F32, self._hidden) if has_post_norm or has_both else None,
            z=add(library.F32, self._hidden) if has_both else None,
        )  # fmt: skip

    def _input(self, name: str, kind: int) -> int:
        """Return the buffer n, a, m or i of a kind of numbers; i is for the projection of a layer's own input."""
        config = self._parts.config
        mixed = max(
            [config.num_heads * config.max_head_dim, *(output_width(each) for each in config.state_layers if each)]
        )
        widths = {"n": self._hidden, "a": mixed, "m": config.widest_mlp}
        if config.per_layer_inputs is not None:
            widths["i"] = config.per_layer_inputs.size
        if (name, kind) not in self._inputs:
            self._inputs[name, kind] = self._add_buffer(kind, widths[name])
        return self._inputs[name, kind]

    def _input_of(self, name: str, linear: Linear) -> int:
        """Return the buffer n, a, m or i that a projection needs."""
        is_quantized = row_quantization(packed_weight(linear.weight)) is not None
        return self._input(name, library.F32 if is_quantized else BUFFER_KINDS[self._dtype])

    def _add_operations(self) -> None:
        parts, on = self._parts, self._buffers
        scale = parts.config.embed_scale
        factor = 1.0 if scale is None else torch.tensor(scale, dtype=self._dtype).item()
        factor /= parts.config.residual_multiplier
        self._add_embed(parts.table, self._hidden, factor, on.x)
        weights = [packed_weight(linear.weight) for linear in linears(parts)]
        self._next_weights = {
            id(weight): following for weight, following in pairwise([*weights, packed_weight(parts.head)])
        }
        if parts.per_layer_inputs is not None:
            self._input_buffers = InputBuffers.add(self._handle, parts.per_layer_inputs, len(parts.layers))
            self._add_per_layer_inputs(parts.per_layer_inputs, self._input_buffers)
        for index, layer in enumerate(parts.layers):
            self._add_layer(layer)
            if layer.layer_input is not None:
                self._add_layer_input(index, layer.layer_input, layer.scalar)
        self._add_norm(replace(parts.norm, weight=parts.norm.weight.float() / parts.config.logits_divisor), on.x, on.h)

    def _add_embed(self, table: LinearWeight, width: int, factor: float, target: int) -> None:
        """Add the look-up of rows, times a factor, in a table that is packed or a tensor."""
        address, kind, packed_table = None, library.BFLOAT16, None
        if isinstance(table, PackedWeight):
            packed_table = ctypes.byref(table.struct)
        else:
            assert isinstance(table, Tensor), "a table is packed or a tensor"
            kind = next(kind for kind, dtype in DTYPES.items() if dtype == table.dtype)
            address = self._keep(table, table.dtype)
        self._native.add_embed(self._handle, address, kind, packed_table, width, factor, target)

    def _add_layer(self, layer: DecoderLayer) -> None:
        on, mixer, mlp = self._buffers, layer.mixer, layer.mlp
        normed = self._add_pre_norm(layer.before_attention, mixer.projection)
        self._add_linear(mixer.projection, normed, library.STORE, on.p)
        mixed = self._input_of("a", mixer.output)
        if isinstance(mixer, Attention):
            self._add_attention(mixer, mixed)
        else:
            assert self._state_buffers is not None, "a layer with a state without its buffers"
            add_state_layer(self._handle, mixer, layer.state_index, on.p, self._state_buffers, mixed, self._keep)
        self._add_residual(mixer.output, mixed, layer.after_attention)
        # The last operation of a layer multiplies by its scalar.
        factor = 1.0 if layer.scalar is None or layer.layer_input is not None else layer.scalar.float().item()
        if isinstance(mlp, Experts):
            self._add_experts(mlp, layer, factor)
        elif isinstance(mlp, MLPWithExperts):
            self._add_mlp_with_experts(mlp, layer, factor)
        else:
            self._add_residual(mlp.down, self._add_gated(mlp, layer.before_mlp), layer.after_mlp, factor)

    def _add_gated(self, mlp: MLP, norm: RMSNorm | None) -> int:
        """Add the gates of an MLP; return the buffer that its other projection reads."""
        gated = self._input_of("m", mlp.down)
        normed = self._add_pre_norm(norm, mlp.gate_up)
        self._add_linear(mlp.gate_up, normed, library.GATED, gated, library.ACTIVATIONS[mlp.activation])
        return gated

    def _add_mlp_with_experts(self, both: MLPWithExperts, layer: DecoderLayer, factor: float) -> None:
        on = self._buffers
        assert on.y is not None, "both without their buffers"
        assert on.z is not None, "both without their buffers"
        assert layer.after_mlp is not None, "both without a norm of their sum"
        self._add_product(both.mlp.down, self._add_gated(both.mlp, layer.before_mlp), library.STORE, on.y)
        self._add_norm(both.after_mlp, on.y, on.z)
        rows = {kind: self._input("n", kind) for kind in self._experts.input_kinds(both.experts)}
        for buffer in rows.values():
            self._add_norm(both.before_experts, on.x, buffer)
        self._experts.add(both.experts, rows, on.y, adds=False, router_rows=on.x)
        self._add_norm(both.after_experts, on.y, on.z, adds=True)
        self._add_sum(layer.after_mlp, on.z, factor)

    def _add_per_layer_inputs(self, inputs: PerLayerInputs, buffers: InputBuffers) -> None:
        """Add the inputs of all layers: rows of their table, and the norms of a projection of embeddings."""
        assert self._parts.config.residual_multiplier == 1.0, "a projection of [x] itself"
        scale = inputs.table_scale(self._dtype) * SUM_SCALE
        self._add_embed(inputs.table, buffers.num_layers * inputs.size, scale, buffers.inputs)
        self._add_linear(
            inputs.projection, self._add_pre_norm(None, inputs.projection), library.STORE, buffers.projected
        )
        buffers.add_norms(self._handle, inputs, self._keep(inputs.norm.weight.float() * SUM_SCALE))

    def _add_layer_input(self, index: int, own: LayerInput, scalar: Tensor | None) -> None:
        """Add the gate, the product with the layer's input, the projection and its norm, and the layer's scalar."""
        buffers = self._input_buffers
        assert buffers is not None, "a layer's input without its buffers"
        self._add_linear(own.gate, self._add_pre_norm(None, own.gate), library.STORE, buffers.gate)
        source = self._input_of("i", own.projection)
        buffers.add_product(self._handle, index, own.activation, source)
        factor = 1.0 if scalar is None else scalar.float().item()
        self._add_residual(own.projection, source, own.norm, factor)

    def _add_experts(self, experts: Experts, layer: DecoderLayer, factor: float) -> None:
        on = self._buffers
        rows = {kind: self._input("n", kind) for kind in self._experts.input_kinds(experts)}
        for buffer in rows.values():
            self._add_norm(layer.before_mlp, on.x, buffer)
        if layer.after_mlp is None:
            assert factor == 1.0, "a scalar of a layer without a norm after its experts"
            self._experts.add(experts, rows, on.x, adds=True)
            return
        assert on.y is not None, "a post-norm without its buffer"
        self._experts.add(experts, rows, on.y, adds=False)
        self._add_sum(layer.after_mlp, on.y, factor)

    def _add_residual(self, linear: Linear, source: int, norm: RMSNorm | None, factor: float = 1.0) -> None:
        """Add a projection whose result is added to the residual, through a norm if there is one.

        `factor` is of the sum.
        """
        on = self._buffers
        if norm is None:
            assert factor == 1.0, "a scalar of a layer without a norm at its end"
            self._add_product(linear, source, library.ADD, on.x)
            return
        assert on.y is not None, "a post-norm without its buffer"
        self._add_product(linear, source, library.STORE, on.y)
        self._add_sum(norm, on.y, factor)

    def _add_product(self, linear: Linear, source: int, mode: int, target: int) -> None:
        """Add a projection of rows that are quantized first if it needs that."""
        quantized = self._quantized_buffer(source, linear)
        if quantized is not None:
            self._native.add_quantize(self._handle, source, quantized)
            source = quantized
        self._add_linear(linear, source, mode, target)

    def _add_sum(self, norm: RMSNorm, source: int, factor: float) -> None:
        """Add x = factor * (x + norm(source))."""
        self._native.add_sum_norm(
            self._handle, source, self._keep(norm.weight), norm.eps, 1, self._hidden, factor, self._buffers.x
        )

    def _add_pre_norm(self, norm: RMSNorm | None, linear: Linear) -> int:
        """Add the norm before a projection; return the buffer that the projection reads. None converts numbers only."""
        normed = self._input_of("n", linear)
        quantized = self._quantized_buffer(normed, linear)
        self._add_norm(norm, self._buffers.x, normed, quantized=quantized)
        return normed if quantized is None else quantized

    def _add_norm(
        self, norm: RMSNorm | None, source: int, target: int, *, adds: bool = False, quantized: int | None = None
    ) -> None:  # fmt: skip
        weight, eps, to = None, 0.0, -1 if quantized is None else quantized
        if norm is not None:
            weight, eps = self._keep(norm.weight), norm.eps
            if source == self._buffers.x:
                eps /= self._parts.config.residual_multiplier**2
        self._native.add_norm(self._handle, source, weight, eps, target, adds, to)

    def _quantized_buffer(self, source: int, linear: Linear) -> int | None:
        """Return the buffer for the quantised rows of another one; None if the projection needs no quantised rows."""
        weight = packed_weight(linear.weight)
        if (kind := row_quantization(weight)) is None:
            return None
        key = source, kind, padded_inputs(weight)
        if key not in self._quantized_buffers:
            buffer = self._native.add_buffer(self._handle, library.QUANTIZED, padded_inputs(weight), kind)
            self._quantized_buffers[key] = buffer
        return self._quantized_buffers[key]

    def _add_linear(self, linear: Linear, source: int, mode: int, target: int, activation: int = 0) -> None:
        weight, bias = packed_weight(linear.weight), None
        if linear.bias is not None:
            bias = self._keep(padded_bias(linear.bias, weight, gated=mode == library.GATED))
        segments = (ctypes.POINTER(kernel_structs.Weight) * len(weight.segments))(*map(ctypes.pointer, weight.segments))
        self._native.add_linear(
            self._handle, source, segments, len(segments), bias, mode, activation,
            ctypes.byref(self._next_weights[id(weight)].segments[0]), target,
        )  # fmt: skip

    def _add_attention(self, attention: Attention, target: int) -> None:
        on, spec, shape = self._buffers, attention.spec, attention.shape
        assert spec.scale > 0, "the kernels take the maximum before they scale"
        width = attention.num_heads * shape.head_dim
        sizes = (attention.num_heads, shape.num_kv_heads, shape.head_dim, self.block_size, self.block_elements)
        self._native.add_rope_cache(
            self._handle, on.p, on.q, spec.group, attention.kv_index, *sizes, attention.num_keys, attention.num_values,
            *self._head_norms(attention), self._keep(attention.rope.cos), self._keep(attention.rope.sin),
            None if attention.query_scales is None else self._keep(attention.query_scales),
        )  # fmt: skip
        self._native.add_attention(
            self._handle, on.q, target, spec.group, attention.kv_index, *sizes, spec.scale, spec.softcap or 0.0,
            spec.window or 0, None if spec.sinks is None else self._keep(spec.sinks),
        )  # fmt: skip
        if attention.has_gate:
            first = width + (attention.num_keys + attention.num_values) * shape.head_dim
            self._native.add_gate(self._handle, on.p, first, width, target)

    def _head_norms(self, attention: Attention) -> tuple[int | None, float, bool, bool]:
        """Return the weights of the norms, their eps, whether values are normalised, and whether keys are together."""
        value_norm, norms = attention.value_norm, attention.projection_norms
        eps = 0.0 if value_norm is None else value_norm.eps
        if attention.head_norm is not None:
            return self._keep(attention.head_norm.weight), attention.head_norm.eps, value_norm is not None, False
        if norms is not None:
            return self._keep(torch.cat([norm.weight for norm in norms])), norms[0].eps, value_norm is not None, True
        return None, eps, value_norm is not None, False

    def _keep(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Convert a tensor and keep it alive as long as the program; return its address."""
        self._tensors.append(tensor.to(dtype).contiguous())
        return self._tensors[-1].data_ptr()


def linears(parts: DecoderSpec) -> Iterator[Linear]:
    """Yield the projections in the order of a step; experts have none of these."""
    if parts.per_layer_inputs is not None:
        yield parts.per_layer_inputs.projection
    for layer in parts.layers:
        yield from (layer.mixer.projection, layer.mixer.output)
        if not isinstance(layer.mlp, Experts):
            mlp = layer.mlp if isinstance(layer.mlp, MLP) else layer.mlp.mlp
            yield from (mlp.gate_up, mlp.down)
        if layer.layer_input is not None:
            yield from (layer.layer_input.gate, layer.layer_input.projection)
