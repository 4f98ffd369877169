"""Kernels of 8-bit floats by Triton's interpreter: equal to torch's, and a row's bits depend on that row alone.

The interpreter converts to 8 bits wrongly where rounding carries into the exponent, so that exact comparisons use
numbers that need no rounding. test_compile_check.py has the instructions with which a GPU converts.
"""

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels import float8_linear
from chairlift.model.kernels.cuda import float8_kernels
from chairlift.model.kernels.cuda.float8_kernels import MAX_COLUMNS, TILE_ROWS, multiply, quantize_launch, quantize_rows
from chairlift.model.kernels.float8_linear import Float8Weight


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact_rows(rows: int, size: int, seed: int = 0) -> Tensor:
    """Return rows of 8-bit floats times a power of two for each row; the largest number of a row is 448 times it."""
    values = drawn(rows, size, seed=seed).mul(50).to(torch.float8_e4m3fn).float()
    values[:, size // 2] = -448.0
    return values * torch.exp2(torch.arange(rows) % 23 - 11.0)[:, None]


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "size"), [(5, 48), (1, 16), (0, 16), (3, 1000), (2, MAX_COLUMNS + 80)])
def test_rows_that_need_no_rounding_are_quantized_as_by_torch(dtype: torch.dtype, rows: int, size: int) -> None:
    x = exact_rows(rows, size).to(dtype)
    (values, scales), (expected, expected_scales) = quantize_rows(x), float8_linear.quantize_rows(x)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8)) and torch.equal(scales, expected_scales)
    assert not rows or torch.equal(values.float() * scales[:, None], x.float())


def test_other_rows_have_the_scales_of_torch_and_nearly_its_values() -> None:
    x = drawn(20, 200) * torch.logspace(-12, 12, 20)[:, None]
    (values, scales), (expected, expected_scales) = quantize_rows(x), float8_linear.quantize_rows(x)
    assert torch.equal(scales, expected_scales)
    assert (values.view(torch.uint8) == expected.view(torch.uint8)).float().mean() > 0.9


def test_rows_may_lie_apart_and_zeros_and_infinities_have_finite_scales() -> None:
    wide = exact_rows(4, 96)
    assert torch.equal(quantize_rows(wide[:, 20:68])[0].float(), quantize_rows(wide[:, 20:68].contiguous())[0].float())
    x = torch.zeros(3, 16)
    x[1, 2], x[2, 3] = torch.inf, -torch.inf
    (values, scales), (expected, expected_scales) = quantize_rows(x), float8_linear.quantize_rows(x)
    assert torch.equal(values.float(), expected.float()) and torch.equal(scales, expected_scales)
    assert values[1, 2].float() == 448 and bool(scales.isfinite().all())


@pytest.mark.share(3)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 64, 64), (0, 16, 16), (70, 144, 112), (3, 16, 272)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_torch(rows: int, outputs: int, inputs: int, has_bias: bool) -> None:
    magnitude = torch.logspace(-3, 3, rows)[:, None] * torch.logspace(-2, 2, outputs)
    values, scales = float8_linear.quantize_rows(drawn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None])
    factors = torch.logspace(-2, 2, outputs)[:, None]
    weight = Float8Weight(*float8_linear.quantize_rows(drawn(outputs, inputs, seed=1) * factors))
    bias = drawn(outputs, seed=2) if has_bias else None
    found, expected = (one(values, scales, weight, bias, torch.float32) for one in (multiply, float8_linear.multiply))
    assert bool(((found - expected).abs() <= 1e-5 * (magnitude + expected.abs())).all())


def test_a_row_has_the_same_bits_alone_and_at_any_place_of_any_batch() -> None:
    weight, bias = Float8Weight(*float8_linear.quantize_rows(drawn(80, 96, seed=1))), drawn(80, seed=2)

    def product(x: Tensor) -> Tensor:
        return multiply(*quantize_rows(x), weight, bias, torch.float32)

    x = drawn(TILE_ROWS + 9, 96)
    together = product(x)
    assert together.isfinite().all() and together.std() > 0
    for at in (0, 1, TILE_ROWS, TILE_ROWS + 8):
        assert torch.equal(product(x[at : at + 1])[0], together[at])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    assert torch.equal(product(x[order]), together[order])


def test_the_launch_depends_on_the_size_alone_and_covers_it() -> None:
    for size in (16, 1024, 5000, 14336, 60000):
        columns, num_warps = quantize_launch(size)
        assert columns >= min(size, MAX_COLUMNS) and columns & (columns - 1) == 0 and 1 <= num_warps <= 16


def test_every_variant_is_for_gpus_that_have_8_bit_floats() -> None:
    found = list(float8_kernels.variants())
    assert {each.min_capability for each in found} == {89}
    assert {each.kernel.fn.__name__ for each in found} == {"quantize_rows_kernel", "float8_linear_kernel"}
