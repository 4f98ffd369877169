"""Kernels of products of 8-bit floats with a scale for each row (kernels/float8_linear.py has the definition).

    quantize_rows_kernel   numbers of a row as 8-bit floats, and the row's scale, in one pass of a program a row
    float8_linear_kernel   the product by tiles that are the same for every batch, for the option `deterministic`

The tiles and the order of sums are as in batch_invariant_linear_kernel.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.model.device.dtypes import FLOAT8_CAPABILITY
from chairlift.model.device.kv_dtype import FLOAT8, FLOAT8_LIMIT
from chairlift.model.kernels.cuda.attention_kernels import as_stored
from chairlift.model.kernels.cuda.batch_invariant_linear_kernel import store_sums, tile_sums
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant
from chairlift.model.kernels.float8_linear import LEAST_MAXIMUM, Float8Weight

MAX_COLUMNS = 8192
"""Most columns of a row that a program of quantize_rows_kernel has in registers at once."""

TILE_ROWS, TILE_OUTPUTS, TILE_INNER = 64, 128, 128
NUM_WARPS, NUM_STAGES = 4, 4
"""How float8_linear_kernel is launched, for every dtype and size."""


@triton.jit(do_not_specialize=["num_rows"])
def quantize_rows_kernel(
    x, values, scales, num_rows, x_stride,
    LIMIT: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store x [num_rows, SIZE] as 8-bit floats in dense values, and each row's scale in scales. Grid: rows.

    Args:
        x_stride: stride of x's rows, in elements; the last stride is 1.
        LIMIT: largest 8-bit float.
        LEAST, LARGEST: least and largest number that a scale is computed from.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    source = x + row * x_stride + column
    highest = tl.zeros([COLUMNS], dtype=tl.float32)
    for start in range(0, SIZE, COLUMNS):
        numbers = tl.load(source + start, mask=start + column < SIZE, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.abs(numbers))
    # The scale stays finite and above 0: for a row of zeros, and for one with an infinity.
    largest = tl.minimum(tl.maximum(tl.max(highest, axis=0), LEAST), LARGEST)
    # Rounded as torch does it, so that both ways give the same 8-bit numbers.
    factor = tl.div_rn(LIMIT, largest)
    for start in range(0, SIZE, COLUMNS):
        numbers = tl.load(source + start, mask=start + column < SIZE, other=0.0).to(tl.float32)
        target = values + row * SIZE + start + column
        tl.store(target, as_stored(numbers * factor, values), mask=start + column < SIZE)
    tl.store(scales + row, tl.div_rn(largest, LIMIT))


@triton.jit(do_not_specialize=["num_rows"])
def float8_linear_kernel(
    x, x_scales, weight, weight_scales, bias, out, num_rows, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_INNER: tl.constexpr,
):  # fmt: skip
    """Store x [num_rows, INPUTS] times the transpose of weight [OUTPUTS, INPUTS], scaled, plus bias, in dense out.

    Grid: tiles of rows, tiles of outputs. x and weight are dense 8-bit floats; bias [OUTPUTS] is read if HAS_BIAS.
    """
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = row < num_rows, output < OUTPUTS
    # Hopper's tensor cores add up 8-bit products with 14 bits; after each tile the sum goes on in float32.
    sums = tile_sums(
        x + row * INPUTS, is_row, weight + output * INPUTS, is_output, INPUTS, TILE_ROWS, TILE_OUTPUTS, TILE_INNER,
        "tf32", TILE_INNER,
    )  # fmt: skip
    sums *= tl.load(x_scales + row, mask=is_row, other=0.0)[:, None]
    sums *= tl.load(weight_scales + output, mask=is_output, other=0.0)[None, :]
    store_sums(sums, bias, out, row, output, is_row, is_output, OUTPUTS, HAS_BIAS)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [T, I] as 8-bit floats [T, I] and the scales float32 [T], as float8_linear.quantize_rows does.

    Columns of x must lie side by side; its rows may have any distance.
    """
    num_rows, size = x.shape
    values, scales = x.new_empty(num_rows, size, dtype=FLOAT8), x.new_empty(num_rows, dtype=torch.float32)
    if num_rows:
        columns, num_warps = quantize_launch(size)
        quantize_rows_kernel[(num_rows,)](
            x, values, scales, num_rows, x.stride(0), LIMIT=FLOAT8_LIMIT, LEAST=LEAST_MAXIMUM,
            LARGEST=torch.finfo(x.dtype).max, SIZE=size, COLUMNS=columns, num_warps=num_warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return values, scales


def quantize_launch(size: int) -> tuple[int, int]:
    """Return the columns and the warps of a program of quantize_rows_kernel for rows of `size` elements."""
    columns = min(MAX_COLUMNS, triton.next_power_of_2(size))
    return columns, min(16, max(1, columns // 256))


def multiply(values: Tensor, scales: Tensor, weight: Float8Weight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return quantized rows [T, I] times the transpose of weight [O, I], plus bias [O], in `dtype` [T, O]."""
    num_rows, (outputs, inputs) = len(values), weight.values.shape
    out = values.new_empty(num_rows, outputs, dtype=dtype)
    if num_rows:
        float8_linear_kernel[(-(-num_rows // TILE_ROWS), -(-outputs // TILE_OUTPUTS))](
            values, scales, weight.values, weight.scales, scales if bias is None else bias, out, num_rows,
            INPUTS=inputs, OUTPUTS=outputs, HAS_BIAS=bias is not None, TILE_ROWS=TILE_ROWS, TILE_OUTPUTS=TILE_OUTPUTS,
            TILE_INNER=TILE_INNER, num_warps=NUM_WARPS, num_stages=NUM_STAGES, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return out


def variants() -> Iterator[KernelVariant]:
    """Yield the variants in use: bfloat16, with a bias and without, also for sizes that fill no tile."""
    for size in (1024, 4096, 14336):
        columns, num_warps = quantize_launch(size)
        constants = {
            "LIMIT": FLOAT8_LIMIT, "LEAST": LEAST_MAXIMUM, "LARGEST": torch.finfo(torch.bfloat16).max, "SIZE": size,
            "COLUMNS": columns,
        }  # fmt: skip
        types = ["*bf16", "*fp8e4nv", "*fp32", "i32", "i32"]
        signature = dict(zip(quantize_rows_kernel.arg_names, types, strict=False))
        yield KernelVariant(
            name=f"quantize_rows {size}", kernel=quantize_rows_kernel, constants=constants, num_warps=num_warps,
            signature=signature | dict.fromkeys(constants, "constexpr"), min_capability=FLOAT8_CAPABILITY,
        )  # fmt: skip
    for outputs, inputs, has_bias in ((6144, 4096, False), (6144, 4096, True), (1008, 1008, False)):
        tiles = {
            "INPUTS": inputs, "OUTPUTS": outputs, "HAS_BIAS": has_bias, "TILE_ROWS": TILE_ROWS,
            "TILE_OUTPUTS": TILE_OUTPUTS, "TILE_INNER": TILE_INNER,
        }  # fmt: skip
        types = ["*fp8e4nv", "*fp32", "*fp8e4nv", "*fp32", "*bf16", "*bf16", "i32"]
        signature = dict(zip(float8_linear_kernel.arg_names, types, strict=False))
        yield KernelVariant(
            name=f"float8_linear {outputs} x {inputs}{', bias' if has_bias else ''}", kernel=float8_linear_kernel,
            signature=signature | dict.fromkeys(tiles, "constexpr"), constants=tiles, num_warps=NUM_WARPS,
            num_stages=NUM_STAGES, needs_tensor_cores=True, min_capability=FLOAT8_CAPABILITY,
        )  # fmt: skip
