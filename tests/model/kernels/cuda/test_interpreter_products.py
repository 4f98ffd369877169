"""The interpreter's products: right, and a row of a tile has the same bits at every place."""

import numpy as np
import torch
import triton
import triton.language as tl

from support_shares import for_each
from support_triton_products import fixed_order_product

SIZE = 32


@triton.jit
def product_kernel(x, y, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tile = at[:, None] * size + at[None, :]
    tl.store(out + tile, tl.dot(tl.load(x + tile), tl.load(y + tile), tl.load(out + tile), input_precision="ieee"))


@for_each("shape", [(1, 16, 16), (64, 32, 128), (3, 1, 5)])
@for_each("dtype", [np.float32, np.float64, np.int32])
def test_a_product_is_that_of_numpy(shape: tuple[int, int, int], dtype: type) -> None:
    rows, terms, columns = shape
    dice = np.random.default_rng(1)
    a, b = dice.integers(-9, 9, (2, rows, terms)).astype(dtype), dice.integers(-9, 9, (2, terms, columns)).astype(dtype)
    assert np.array_equal(fixed_order_product(a, b, dtype), a @ b)


def test_the_order_of_additions_is_fixed() -> None:
    a = np.array([[2.0**30, 1.0, -(2.0**30), 1.0]], np.float32)
    ones = np.ones((4, 1), np.float32)
    assert fixed_order_product(a, ones, np.float32) == 2  # (2**30 - 2**30) + (1 + 1); from left to right it is 1
    assert fixed_order_product(a[:, [0, 2, 1, 3]], ones, np.float32) == 0


def test_a_kernel_multiplies_in_that_order_and_adds_to_its_third_operand() -> None:
    x, y, base = torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    out = base.clone()
    product_kernel[(1,)](x, y, out, SIZE)
    expected = fixed_order_product(x.numpy(), y.numpy(), np.float32) + base.numpy()
    assert np.array_equal(out.numpy(), expected)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    moved = base[order].clone()
    product_kernel[(1,)](x[order].contiguous(), y, moved, SIZE)
    assert torch.equal(moved, out[order])
