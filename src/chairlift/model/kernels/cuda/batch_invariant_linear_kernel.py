"""linear_kernel: x times the transpose of a weight, by tiles that are the same for every batch.

A tile of TILE_ROWS rows of x meets a tile of TILE_OUTPUTS rows of the weight, and one program adds up all their
products in steps of TILE_INNER, from first to last. Nothing of this depends on the number of rows, so a row has the
same bits alone, in any batch and at any place in it.
Libraries choose tiles and the order of sums by the size of the batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.model.kernels.cuda.attention_tiles import EXACT, FAST
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant


class LinearTiles(NamedTuple):
    """How linear_kernel is launched; depends on the dtype alone.

    Attributes:
        rows: rows of x of a tile.
        outputs: rows of the weight of a tile.
        inner: elements of a row that are multiplied at once.
        num_warps, num_stages: Triton's launch options.
        precision: of products of float32, as Triton names it; 16-bit products are exact.
    """

    rows: int
    outputs: int
    inner: int
    num_warps: int
    num_stages: int
    precision: str


def linear_tiles(dtype: torch.dtype) -> LinearTiles:
    """Return the tiles for inputs and weights of a dtype."""
    if dtype == torch.float32:
        return LinearTiles(64, 64, 32, 4, 2, EXACT)
    return LinearTiles(64, 128, 64, 4, 4, FAST)


@triton.jit
def tile_sums(
    x_rows, is_row, weight_rows, is_output, INPUTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_INNER: tl.constexpr, PRECISION: tl.constexpr, MAX_IMPRECISE: tl.constexpr,
):  # fmt: skip
    """Return the products of rows of x and rows of a weight, float32 [TILE_ROWS, TILE_OUTPUTS].

    Args:
        x_rows, weight_rows: where each row begins; its INPUTS elements lie side by side.
        is_row, is_output: which rows are there; the others count as zeros.
        MAX_IMPRECISE: products of 8-bit floats that the tensor cores may add up in fewer bits than float32 has.
    """
    inner = tl.arange(0, TILE_INNER)
    x_tile, weight_tile = x_rows[:, None] + inner[None, :], weight_rows[None, :] + inner[:, None]
    sums = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
    for start in range(0, INPUTS, TILE_INNER):
        # INPUTS is a constant, so only one of these is compiled.
        if INPUTS % TILE_INNER == 0:
            left = tl.load(x_tile, mask=is_row[:, None], other=0.0)
            right = tl.load(weight_tile, mask=is_output[None, :], other=0.0)
        else:
            is_inner = start + inner < INPUTS
            left = tl.load(x_tile, mask=is_row[:, None] & is_inner[None, :], other=0.0)
            right = tl.load(weight_tile, mask=is_output[None, :] & is_inner[:, None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE)
        x_tile += TILE_INNER
        weight_tile += TILE_INNER
    return sums


@triton.jit
def store_sums(
    sums, bias, out, row, output, is_row, is_output, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr
):  # fmt: skip
    """Store sums [TILE_ROWS, TILE_OUTPUTS], plus bias if HAS_BIAS, at rows and outputs of dense out, rounded once."""
    if HAS_BIAS:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    target = out + row[:, None] * OUTPUTS + output[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x, weight, bias, out, num_rows, x_stride, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store x [num_rows, INPUTS] times the transpose of weight [OUTPUTS, INPUTS], plus bias, in dense out.

    Sums are float32; each result is rounded once. Grid: tiles of rows, tiles of outputs.

    Args:
        weight: dense.
        bias: [OUTPUTS]; read if HAS_BIAS.
        x_stride: stride of x's rows, in elements; the last stride is 1.
    """
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = row < num_rows, output < OUTPUTS
    sums = tile_sums(
        x + row * x_stride, is_row, weight + output * INPUTS, is_output, INPUTS, TILE_ROWS, TILE_OUTPUTS, TILE_INNER,
        PRECISION, 0,
    )  # fmt: skip
    store_sums(sums, bias, out, row, output, is_row, is_output, OUTPUTS, HAS_BIAS)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [T, I] times the transpose of a dense weight [O, I], plus bias [O]; all of one dtype, at most 32 bits.

    Columns of x must lie side by side; its rows may have any distance.
    """
    num_rows, (outputs, inputs) = len(x), weight.shape
    out, tiles = x.new_empty(num_rows, outputs), linear_tiles(x.dtype)
    if num_rows:
        linear_kernel[(-(-num_rows // tiles.rows), -(-outputs // tiles.outputs))](
            x, weight, weight if bias is None else bias, out, num_rows, x.stride(0), INPUTS=inputs, OUTPUTS=outputs,
            HAS_BIAS=bias is not None, TILE_ROWS=tiles.rows, TILE_OUTPUTS=tiles.outputs, TILE_INNER=tiles.inner,
            PRECISION=tiles.precision, num_warps=tiles.num_warps, num_stages=tiles.num_stages, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return out


def variants() -> Iterator[KernelVariant]:
    """Yield the variants in use: bfloat16 and float32, with a bias and without, also for sizes that fill no tile."""
    for name, outputs, inputs, has_bias in (
        ("bf16", 6144, 4096, False), ("bf16", 6144, 4096, True), ("bf16", 1000, 1000, False),
        ("fp32", 6144, 4096, False), ("fp32", 1000, 1000, True),
    ):  # fmt: skip
        tiles = linear_tiles(torch.bfloat16 if name == "bf16" else torch.float32)
        constants = {
            "INPUTS": inputs, "OUTPUTS": outputs, "HAS_BIAS": has_bias, "TILE_ROWS": tiles.rows,
            "TILE_OUTPUTS": tiles.outputs, "TILE_INNER": tiles.inner, "PRECISION": tiles.precision,
        }  # fmt: skip
        signature = dict(zip(linear_kernel.arg_names, [*[f"*{name}"] * 4, "i32", "i32"], strict=False))
        yield KernelVariant(
            name=f"linear {name} {outputs} x {inputs}{', bias' if has_bias else ''}", kernel=linear_kernel,
            signature=signature | dict.fromkeys(constants, "constexpr"), constants=constants,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, needs_tensor_cores=name == "bf16",
        )  # fmt: skip
