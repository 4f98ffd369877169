"""TritonOps: a layer's operations on GPUs, each in one kernel.

The numerics are those of TorchOps (ops.py) except for roundings: everything between loading and storing is float32,
and each stored number is rounded once.
"""

from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from chairlift.model.attention.base import PagedKV
from chairlift.model.batch.state_cache import LayerStates
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS
from chairlift.model.kernels import float8_linear
from chairlift.model.kernels.cuda import expert_kernels, float8_kernels, int4_kernels, state_kernels
from chairlift.model.kernels.cuda import layer_kernels as kernels
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS
from chairlift.model.kernels.float8_linear import Float8Weight
from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.layers.ops import Product, TorchOps
from chairlift.model.weights.expert_weights import ExpertWeights

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes that the kernels compute as exactly as TorchOps."""


def _float8_product(x: Tensor, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """See Product (ops.py); rows are quantized in one kernel."""
    return float8_linear.multiply(*float8_kernels.quantize_rows(dense_rows(x)), weight, bias, x.dtype)


def int4_product(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """See Product (ops.py)."""
    return int4_kernels.linear(dense_rows(x), weight, bias)


class TritonOps(TorchOps):
    """Ops on a GPU, or on a CPU by Triton's interpreter; in one of DTYPES."""

    state_chunk_tokens = STATE_CHUNK_TOKENS
    products: Mapping[type, Product] = {
        **TorchOps.products, Float8Weight: _float8_product, Int4Weight: int4_product,
    }  # fmt: skip

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        size, out = x.shape[-1], x.new_empty(x.shape)
        heads = dense_rows(x if weight.ndim == 2 else x.reshape(-1, 1, size))
        rows, columns, num_warps = kernels.norm_launch(size)
        num_rows = heads.shape[0] * heads.shape[1]
        kernels.rms_norm_kernel[(-(-num_rows // rows),)](
            heads, weight, out, num_rows, eps, heads.stride(0), heads.stride(1), size if weight.ndim == 2 else 0,
            HEADS=heads.shape[1], SIZE=size, ROWS=rows, COLUMNS=columns, num_warps=num_warps,
            **LAUNCH_OPTIONS,
        )  # fmt: skip
        return out

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return self.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        size = x.shape[-1]
        left, right = (dense_rows(each.reshape(-1, size)) for each in (x, y))
        total, out = x.new_empty(x.shape), x.new_empty(x.shape)
        rows, columns, num_warps = kernels.norm_launch(size)
        kernels.add_rms_norm_kernel[(-(-len(left) // rows),)](
            left, right, weight, total, out, len(left), eps, left.stride(0), right.stride(0),
            SIZE=size, ROWS=rows, COLUMNS=columns, num_warps=num_warps,
            **LAUNCH_OPTIONS,
        )  # fmt: skip
        return total, out

    def add_rms_norm_float32(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return self.add_rms_norm(x, y, weight, eps)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops. Halves of one tensor are read where they are."""
        out, size = gate.new_empty(gate.shape), gate.shape[-1]
        gate, up = (dense_rows(each.reshape(-1, size)) for each in (gate, up))
        kernels.gated_activation_kernel[_elementwise_grid(gate)](
            gate, up, out, gate.stride(0), up.stride(0),
            SIZE=size, ACTIVATION=activation, COLUMNS=kernels.ELEMENTWISE_COLUMNS, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return out

    def sum_of_experts(self, x: Tensor, experts: Tensor, factors: Tensor, weights: ExpertWeights) -> Tensor:
        """See Ops. Weights that are not stacked are multiplied expert by expert, which waits for the device."""
        if weights.stacked is None:
            return super().sum_of_experts(x, experts, factors, weights)
        biases = None
        if weights.gate_up_bias is not None and weights.down_bias is not None:
            biases = weights.gate_up_bias, weights.down_bias
        return expert_kernels.sum_of_experts(
            dense_rows(x), experts, factors, len(weights.down), weights.stacked, biases, weights.activation
        )

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        return _rotate_heads(dense_rows(x), x.shape[1], None, 0.0, cos, sin, None, None)

    def rotate_and_write(
        self, heads: Tensor, norm: tuple[Tensor, float] | None, rotation: tuple[Tensor, Tensor], kv: PagedKV,
        slot_mapping: Tensor,
    ) -> Tensor:  # fmt: skip
        """See RotateAndWrite."""
        weight, eps = (None, 0.0) if norm is None else norm
        num_heads = heads.shape[1] - 2 * kv.key.shape[2]
        return _rotate_heads(dense_rows(heads), num_heads, weight, eps, *rotation, kv, slot_mapping)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        out, size = logits.new_empty(logits.shape), logits.shape[-1]
        rows = dense_rows(logits.reshape(-1, size))
        kernels.softcap_kernel[_elementwise_grid(rows)](
            rows, out, rows.stride(0), cap, SIZE=size, COLUMNS=kernels.ELEMENTWISE_COLUMNS, **LAUNCH_OPTIONS
        )
        return out

    def run_recurrence(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, states: LayerStates,
        step: StateStep,
    ) -> Tensor:  # fmt: skip
        """See Ops; chunk by chunk. States have partial chunks; saves are at the ends of chunks."""
        recurrent, partial = states.recurrent, states.partial_chunk
        assert recurrent is not None, "a recurrence has a state"
        assert partial is not None, "states without partial chunks"
        assert not (step.save_positions % STATE_CHUNK_TOKENS).any(), "a state is saved in the midst of a chunk"
        _, heads, key_dim, value_dim = recurrent.shape
        key_heads = key.shape[1]
        query, key, value, decay = (each.contiguous() for each in (query, key, value, decay))
        out, num_rows = value.new_zeros(value.shape), len(step.counts)
        columns = min(state_kernels.COLUMNS, max(16, triton.next_power_of_2(value_dim)))
        warps, stages = state_kernels.NUM_WARPS, state_kernels.NUM_STAGES
        options = {"num_warps": warps, "num_stages": stages, **LAUNCH_OPTIONS}
        state_kernels.recurrence_kernel[(num_rows, heads, -(-value_dim // columns))](
            query, key, value, decay, decay if beta is None else beta.contiguous(), recurrent, partial.key,
            partial.update, partial.decay, out, step.slots, step.starts, step.token_bounds, step.save_bounds,
            step.row_saves, HEADS=heads, KEY_HEADS=key_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim,
            KEY_PART=state_kernels.KEY_PART, COLUMNS=columns, CHUNK=STATE_CHUNK_TOKENS,
            HAS_DELTA_RULE=beta is not None, **options,
        )  # fmt: skip
        state_kernels.partial_chunk_kernel[(num_rows, key_heads)](
            key, decay, partial.key, partial.decay, step.slots, step.starts, step.token_bounds, HEADS=heads,
            KEY_HEADS=key_heads, KEY_DIM=key_dim, KEYS=triton.next_power_of_2(key_dim),
            GROUP=triton.next_power_of_2(heads // key_heads), CHUNK=STATE_CHUNK_TOKENS, **options,
        )  # fmt: skip
        return out


def dense_rows(x: Tensor) -> Tensor:
    """Return x, or a copy if its last stride is not 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _elementwise_grid(rows: Tensor) -> tuple[int, int]:
    return len(rows), -(-rows.shape[1] // kernels.ELEMENTWISE_COLUMNS)


def _rotate_heads(
    heads: Tensor, num_heads: int, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor, kv: PagedKV | None,
    slot_mapping: Tensor | None,
) -> Tensor:  # fmt: skip
    """Launch rotate_heads_kernel; without kv all heads are query heads. Returns the queries."""
    tokens, total, width = heads.shape
    query = heads.new_empty(tokens, num_heads, width)
    programs, half, num_warps = kernels.heads_launch(total, width)
    # A pointer that the kernel does not read may be any tensor.
    key, value = (query, query) if kv is None else (kv.key, kv.value)
    block_size, strides = (1, (0, 0, 0)) if kv is None else (key.shape[1], key.stride()[:3])
    kernels.rotate_heads_kernel[(tokens, -(-total // programs))](
        heads, query if weight is None else weight, cos, sin, query, key, value,
        query if slot_mapping is None else slot_mapping, eps, heads.stride(0), heads.stride(1), block_size, *strides,
        QUERY_HEADS=num_heads, KV_HEADS=(total - num_heads) // 2, HALF=width // 2, HAS_NORM=weight is not None,
        HAS_KV=kv is not None, HEADS=programs, COLUMNS=half, num_warps=num_warps,
        **LAUNCH_OPTIONS,
    )  # fmt: skip
    return query
