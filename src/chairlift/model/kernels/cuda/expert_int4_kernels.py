"""int4_gate_up_kernel, int4_down_kernel: products of experts whose weights have codes of 4 bits (int4_linear.py).

As the kernels of expert_kernels.py, with codes that are dequantized in registers. The experts of a layer are one
weight, whose rows lie below each other. Each byte of the codes is read once for a tile of places.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from chairlift.model.kernels.cuda.attention_tiles import EXACT, FAST
from chairlift.model.kernels.cuda.batch_invariant_linear_kernel import LinearTiles
from chairlift.model.kernels.cuda.int4_kernels import TILE_BYTES
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant
from chairlift.model.kernels.cuda.layer_kernels import gated_values


def int4_expert_tiles(dtype: torch.dtype) -> LinearTiles:
    """Return the tiles for rows of a dtype: of as many rows as those of dense weights, and of fewer outputs."""
    if dtype == torch.float32:
        return LinearTiles(32, 16, 2 * TILE_BYTES, 4, 2, EXACT)
    return LinearTiles(64, 32, 2 * TILE_BYTES, 4, 3, FAST)


@triton.jit
def dequantized(
    like, codes, scales, minima, output, is_output, byte, is_byte, INPUTS: tl.constexpr
):  # fmt: skip
    """Return the numbers of the lower and of the upper bits of some bytes of outputs, [bytes, outputs].

    Args:
        like: a pointer to numbers of the dtype to which they are rounded.
        codes, scales, minima: of Int4Weight.
        output, is_output: rows of the weight, and whether they are there.
        byte, is_byte: bytes of a row, and whether they are there.
    """
    is_code = is_byte[:, None] & is_output[None, :]
    pair = tl.load(codes + output[None, :] * (INPUTS // 2) + byte[:, None], mask=is_code, other=0)
    place = output[None, :] * (INPUTS // 32) + (byte // 16)[:, None]
    scale = tl.load(scales + place, mask=is_code, other=0.0).to(tl.float32)
    minimum = tl.load(minima + place, mask=is_code, other=0.0).to(tl.float32)
    low = ((pair & 15).to(tl.float32) * scale + minimum).to(like.dtype.element_ty)
    high = ((pair >> 4).to(tl.float32) * scale + minimum).to(like.dtype.element_ty)
    return low, high


@triton.jit
def int4_gate_up_kernel(
    x, codes, scales, minima, bias, out, pairs, tile_experts, tile_begins, tile_ends, x_stride,
    NUM_EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, INPUTS: tl.constexpr, NEURONS: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_BYTES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store activation(gate) * up of each pair at its place in dense out [P, NEURONS]; see gate_up_kernel.

    Args:
        codes, scales, minima: of an Int4Weight [NUM_EXPERTS * 2 NEURONS, INPUTS]; gates, then ups of each expert.
    """
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < NUM_EXPERTS:
        place = tl.load(tile_begins + tl.program_id(0)) + tl.arange(0, TILE_ROWS)
        is_row = place < tl.load(tile_ends + tl.program_id(0))
        row = tl.load(pairs + place, mask=is_row, other=0) // CHOSEN
        neuron = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        is_neuron = neuron < NEURONS
        gate = expert * 2 * NEURONS + neuron
        gates = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
        ups = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
        for start in range(0, INPUTS // 2, TILE_BYTES):
            byte = start + tl.arange(0, TILE_BYTES)
            is_byte = byte < INPUTS // 2
            inputs = x + row[:, None] * x_stride + (byte // 16 * 32 + byte % 16)[None, :]
            is_input = is_row[:, None] & is_byte[None, :]
            first = tl.load(inputs, mask=is_input, other=0.0)
            second = tl.load(inputs + 16, mask=is_input, other=0.0)
            low, high = dequantized(x, codes, scales, minima, gate, is_neuron, byte, is_byte, INPUTS)
            gates = tl.dot(first, low, gates, input_precision=PRECISION)
            gates = tl.dot(second, high, gates, input_precision=PRECISION)
            low, high = dequantized(x, codes, scales, minima, gate + NEURONS, is_neuron, byte, is_byte, INPUTS)
            ups = tl.dot(first, low, ups, input_precision=PRECISION)
            ups = tl.dot(second, high, ups, input_precision=PRECISION)
        if HAS_BIAS:
            gates += tl.load(bias + gate, mask=is_neuron, other=0.0).to(tl.float32)[None, :]
            ups += tl.load(bias + gate + NEURONS, mask=is_neuron, other=0.0).to(tl.float32)[None, :]
        values = gated_values(gates, ups, ACTIVATION).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * NEURONS + neuron[None, :], values, mask=is_row[:, None] & is_neuron[None, :])


@triton.jit
def int4_down_kernel(
    gated, codes, scales, minima, bias, factors, out, pairs, tile_experts, tile_begins, tile_ends,
    NUM_EXPERTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_BYTES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the output of each pair times its factor in dense out [P, OUTPUTS], float32; see down_kernel.

    Args:
        codes, scales, minima: of an Int4Weight [NUM_EXPERTS * OUTPUTS, INPUTS].
    """
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < NUM_EXPERTS:
        place = tl.load(tile_begins + tl.program_id(0)) + tl.arange(0, TILE_ROWS)
        is_row = place < tl.load(tile_ends + tl.program_id(0))
        output = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        is_output = output < OUTPUTS
        of_expert = expert * OUTPUTS + output
        sums = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
        for start in range(0, INPUTS // 2, TILE_BYTES):
            byte = start + tl.arange(0, TILE_BYTES)
            is_byte = byte < INPUTS // 2
            inputs = gated + place[:, None] * INPUTS + (byte // 16 * 32 + byte % 16)[None, :]
            is_input = is_row[:, None] & is_byte[None, :]
            low, high = dequantized(gated, codes, scales, minima, of_expert, is_output, byte, is_byte, INPUTS)
            first = tl.load(inputs, mask=is_input, other=0.0)
            second = tl.load(inputs + 16, mask=is_input, other=0.0)
            sums = tl.dot(first, low, sums, input_precision=PRECISION)
            sums = tl.dot(second, high, sums, input_precision=PRECISION)
        if HAS_BIAS:
            sums += tl.load(bias + of_expert, mask=is_output, other=0.0).to(tl.float32)[None, :]
        pair = tl.load(pairs + place, mask=is_row, other=0)
        sums = sums * tl.load(factors + pair, mask=is_row, other=0.0)[:, None]
        tl.store(out + pair[:, None] * OUTPUTS + output[None, :], sums, mask=is_row[:, None] & is_output[None, :])


def variants() -> Iterator[KernelVariant]:
    """Yield the variants in use: bfloat16 with scales of both dtypes, and float32, also for sizes that fill no tile."""
    for name, scale, experts, hidden, neurons, has_bias, activation in (
        ("bf16", "fp16", 128, 2048, 768, False, "silu"), ("bf16", "fp32", 32, 2880, 2880, True, "clamped_swiglu"),
        ("fp32", "fp16", 9, 992, 352, True, "silu"),
    ):  # fmt: skip
        tiles = int4_expert_tiles(torch.bfloat16 if name == "bf16" else torch.float32)
        shape: dict[str, Any] = {
            "NUM_EXPERTS": experts, "HAS_BIAS": has_bias, "TILE_ROWS": tiles.rows, "TILE_OUTPUTS": tiles.outputs,
            "TILE_BYTES": TILE_BYTES, "PRECISION": tiles.precision,
        }  # fmt: skip
        own, weight, places = f"*{name}", ["*u8", f"*{scale}", f"*{scale}"], ["*i64"] * 4
        gate_up = shape | {"CHOSEN": 8, "INPUTS": hidden, "NEURONS": neurons, "ACTIVATION": activation}
        down = shape | {"INPUTS": neurons, "OUTPUTS": hidden}
        for kernel, types, constants in (
            (int4_gate_up_kernel, [own, *weight, own, own, *places, "i32"], gate_up),
            (int4_down_kernel, [own, *weight, own, "*fp32", "*fp32", *places], down),
        ):
            signature = dict(zip(kernel.arg_names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
            yield KernelVariant(
                name=f"{kernel.fn.__name__} {name}, scales {scale}, {experts} experts {neurons} x {hidden}",
                kernel=kernel, signature=signature, constants=constants, num_warps=tiles.num_warps,
                num_stages=tiles.num_stages, needs_tensor_cores=name == "bf16",
            )  # fmt: skip
