"""int4_linear_kernel: products with weights of 4-bit codes, which are dequantized in registers (int4_linear.py).

Tiles and the order of sums are the same for every batch, so a row has the same bits alone, in any batch and at any
place in it. Each byte of the codes is read once for a tile of rows.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.model.kernels.cuda.attention_tiles import EXACT, FAST
from chairlift.model.kernels.cuda.batch_invariant_linear_kernel import LinearTiles, store_sums
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant
from chairlift.model.kernels.int4_linear import Int4Weight

TILE_BYTES = 32
"""Bytes of codes of an output that are multiplied at once: two groups."""


def int4_tiles(dtype: torch.dtype) -> LinearTiles:
    """Return the tiles for inputs of a dtype; smaller than those of dense weights, as scales need registers, too."""
    if dtype == torch.float32:
        return LinearTiles(32, 32, 2 * TILE_BYTES, 4, 2, EXACT)
    return LinearTiles(64, 64, 2 * TILE_BYTES, 4, 3, FAST)


@triton.jit(do_not_specialize=["num_rows"])
def int4_linear_kernel(
    x, codes, scales, minima, bias, out, num_rows, x_stride, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_BYTES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store x [num_rows, INPUTS] times the transpose of the weight [OUTPUTS, INPUTS], plus bias, in dense out.

    Sums are float32; each result is rounded once. Grid: tiles of rows, tiles of outputs.

    Args:
        codes, scales, minima: of Int4Weight.
        bias: [OUTPUTS]; read if HAS_BIAS.
        x_stride: stride of x's rows, in elements; the last stride is 1.
    """
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = row < num_rows, output < OUTPUTS
    sums = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
    for start in range(0, INPUTS // 2, TILE_BYTES):
        byte = start + tl.arange(0, TILE_BYTES)
        group, lower = byte // 16, byte // 16 * 32 + byte % 16
        is_byte = byte < INPUTS // 2
        is_code = is_byte[:, None] & is_output[None, :]
        pair = tl.load(codes + output[None, :] * (INPUTS // 2) + byte[:, None], mask=is_code, other=0)
        place = output[None, :] * (INPUTS // 32) + group[:, None]
        scale = tl.load(scales + place, mask=is_code, other=0.0).to(tl.float32)
        minimum = tl.load(minima + place, mask=is_code, other=0.0).to(tl.float32)
        inputs = x + row[:, None] * x_stride + lower[None, :]
        is_input = is_row[:, None] & is_byte[None, :]
        first = tl.load(inputs, mask=is_input, other=0.0)
        second = tl.load(inputs + 16, mask=is_input, other=0.0)
        low = ((pair & 15).to(tl.float32) * scale + minimum).to(x.dtype.element_ty)
        high = ((pair >> 4).to(tl.float32) * scale + minimum).to(x.dtype.element_ty)
        sums = tl.dot(first, low, sums, input_precision=PRECISION)
        sums = tl.dot(second, high, sums, input_precision=PRECISION)
    store_sums(sums, bias, out, row, output, is_row, is_output, OUTPUTS, HAS_BIAS)


def linear(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """Return x [T, I] times the transpose of weight [O, I], plus bias [O]; x has at most 32 bits.

    Columns of x must lie side by side; its rows may have any distance.
    """
    num_rows, (outputs, inputs) = len(x), weight.shape
    out, tiles = x.new_empty(num_rows, outputs), int4_tiles(x.dtype)
    if num_rows:
        int4_linear_kernel[(-(-num_rows // tiles.rows), -(-outputs // tiles.outputs))](
            x, weight.codes, weight.scales, weight.minima, x if bias is None else bias, out, num_rows, x.stride(0),
            INPUTS=inputs, OUTPUTS=outputs, HAS_BIAS=bias is not None, TILE_ROWS=tiles.rows,
            TILE_OUTPUTS=tiles.outputs, TILE_BYTES=TILE_BYTES, PRECISION=tiles.precision,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return out


def variants() -> Iterator[KernelVariant]:
    """Yield the variants in use: bfloat16 with scales of both dtypes, and float32, also for sizes that fill no tile."""
    for name, scale, outputs, inputs, has_bias in (
        ("bf16", "fp16", 6144, 4096, False), ("bf16", "fp32", 6144, 4096, True), ("bf16", "fp16", 1000, 992, False),
        ("fp32", "fp16", 1000, 992, True),
    ):  # fmt: skip
        tiles = int4_tiles(torch.bfloat16 if name == "bf16" else torch.float32)
        constants = {
            "INPUTS": inputs, "OUTPUTS": outputs, "HAS_BIAS": has_bias, "TILE_ROWS": tiles.rows,
            "TILE_OUTPUTS": tiles.outputs, "TILE_BYTES": TILE_BYTES, "PRECISION": tiles.precision,
        }  # fmt: skip
        types = [f"*{name}", "*u8", f"*{scale}", f"*{scale}", f"*{name}", f"*{name}", "i32", "i32"]
        signature = dict(zip(int4_linear_kernel.arg_names, types, strict=False))
        yield KernelVariant(
            name=f"int4_linear {name}, scales {scale}, {outputs} x {inputs}{', bias' if has_bias else ''}",
            kernel=int4_linear_kernel, signature=signature | dict.fromkeys(constants, "constexpr"),
            constants=constants, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            needs_tensor_cores=name == "bf16",
        )  # fmt: skip
