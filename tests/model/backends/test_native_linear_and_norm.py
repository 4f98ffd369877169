"""NativeLinear against float64: weights, odd shapes, biases, strided rows; the same bits in every batch."""

import pytest
import torch
from torch import Tensor

from chairlift.model.backends.native_linear_and_norm import NativeLinear, NativeRMSNorm
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import DTYPES, KINDS
from support_native import instruction_sets, need_native
from support_shares import for_each

KINDS_AND_DTYPES = (
    ("bfloat16", torch.bfloat16), ("float32", torch.float32), ("float16", torch.float32), ("int8", torch.bfloat16),
    ("int8", torch.float32), ("int8-channel", torch.bfloat16), ("int8-channel", torch.float32),
    ("int4", torch.bfloat16), ("int4", torch.float32),
)  # fmt: skip
"""Kinds of weights, and dtypes of the rows that they are multiplied by."""


def random_bf16(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def made(
    name: str, kind: str, weight: Tensor, bias: Tensor | None = None, threads: int = 2,
    dtype: torch.dtype = torch.bfloat16,
) -> NativeLinear:  # fmt: skip
    need_native()
    return NativeLinear(weight, bias, Packer(get_thread_pool(threads), KINDS[kind], dtype), name)


@for_each("with_bias", [False, True])
@for_each(("kind", "dtype"), KINDS_AND_DTYPES)
@for_each("name", instruction_sets())
def test_products_are_those_of_float64(name: str, kind: str, dtype: torch.dtype, with_bias: bool) -> None:
    for rows, inputs, outputs in ((1, 64, 64), (2, 33, 70), (40, 96, 200), (7, 128, 31)):
        x, weight = random_bf16(rows, inputs, seed=1), random_bf16(outputs, inputs, seed=2)
        bias = random_bf16(outputs, seed=3) if with_bias else None
        linear = made(name, kind, weight, bias, dtype=dtype)
        found = linear(x.to(dtype))
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        assert found.dtype == dtype and found.shape == exact.shape and found.is_contiguous()
        # One rounding to bfloat16, or rounded weights and rows.
        bound = {"bfloat16": 0.005, "int8": 0.02, "int8-channel": 0.02, "int4": 0.12}.get(kind, 1e-6)
        assert (found.double() - exact).norm() <= bound * exact.norm()
        assert (linear.error is None) == (KINDS[kind] in DTYPES) and linear.has_bias == with_bias


@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind: str, dtype: torch.dtype) -> None:
    linear = made(instruction_sets()[0], kind, random_bf16(130, 96, seed=1), random_bf16(130, seed=2), dtype=dtype)
    rows = random_bf16(300, 96).to(dtype)
    whole = linear(rows)
    for count in (1, 2, 5, 33, 100):
        assert torch.equal(linear(rows[:count]), whole[:count])
    weight, bias = random_bf16(130, 96, seed=1), random_bf16(130, seed=2)
    single = made(instruction_sets()[0], kind, weight, bias, threads=1, dtype=dtype)
    assert torch.equal(single(rows), whole)


def test_rows_of_any_shape_stride_and_dtype_and_none_at_all() -> None:
    linear = made(instruction_sets()[0], "bfloat16", random_bf16(64, 32, seed=1))
    rows = random_bf16(6, 32)
    expected = linear(rows)
    assert torch.equal(linear(rows.view(1, 2, 3, 32)), expected.view(1, 2, 3, 64))
    wide = torch.zeros(6, 50, dtype=torch.bfloat16)
    wide[:, 9:41] = rows
    assert torch.equal(linear(wide[:, 9:41]), expected)
    assert torch.equal(linear(rows.T.contiguous().T), expected)
    assert torch.equal(linear(rows.float()), expected)
    assert linear(rows[:0]).shape == (0, 64)


@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_DTYPES)
@pytest.mark.parametrize("name", instruction_sets())
def test_no_rows_have_no_products(name: str, kind: str, dtype: torch.dtype) -> None:
    linear = made(name, kind, random_bf16(64, 33, seed=1), dtype=dtype)
    assert linear(torch.zeros(0, 33, dtype=dtype)).shape == (0, 64)


def test_rows_of_another_width_are_refused() -> None:
    linear = made(instruction_sets()[0], "bfloat16", random_bf16(64, 32))
    norm = NativeRMSNorm(torch.ones(32), 1e-6, get_thread_pool(2), instruction_sets()[0])
    for width in (31, 33, 241):
        for layer in (linear, norm):
            with pytest.raises(ValueError, match=f"the layer takes 32 inputs, and {width} are given"):
                layer(random_bf16(2, width))
