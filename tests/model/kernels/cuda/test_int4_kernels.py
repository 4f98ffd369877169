"""int4_linear_kernel by Triton's interpreter: torch's product of the numbers, and bits that depend on a row alone."""

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels import int4_linear
from chairlift.model.kernels.cuda import int4_kernels
from chairlift.model.kernels.cuda.int4_kernels import int4_tiles
from support_int4 import drawn_weight


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.share(4)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 64, 64), (0, 16, 32), (70, 144, 96), (3, 1, 288)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("scales", [torch.float16, torch.float32])
def test_a_product_is_that_of_torch(
    rows: int, outputs: int, inputs: int, has_bias: bool, scales: torch.dtype
) -> None:  # fmt: skip
    x, weight = drawn(rows, inputs), drawn_weight(outputs, inputs, scales)
    bias = drawn(outputs, seed=2) if has_bias else None
    expected = int4_linear.linear(x.double(), weight, None if bias is None else bias.double())
    torch.testing.assert_close(int4_kernels.linear(x, weight, bias).double(), expected, rtol=0, atol=2e-5)


def test_numbers_are_rounded_to_the_dtype_of_the_inputs() -> None:
    weight = drawn_weight(48, 64, torch.float32)
    x = torch.eye(64)[:48].half()  # the interpreter has no products of bfloat16
    assert torch.equal(int4_kernels.linear(x, weight, None), weight.dense(torch.float16).T[:48])


def test_a_row_has_the_same_bits_alone_and_at_any_place_of_any_batch() -> None:
    weight, bias = drawn_weight(80, 96), drawn(80, seed=2)
    x = drawn(int4_tiles(torch.float32).rows + 9, 96)
    together = int4_kernels.linear(x, weight, bias)
    for row in (0, 5, len(x) - 1):
        assert torch.equal(int4_kernels.linear(x[row : row + 1], weight, bias)[0], together[row])
    assert torch.equal(int4_kernels.linear(x.flip(0), weight, bias).flip(0), together)
    wide = drawn(4, 200)
    assert torch.equal(
        int4_kernels.linear(wide[:, 20:116], weight, None),
        int4_kernels.linear(wide[:, 20:116].contiguous(), weight, None),
    )


def test_each_variant_is_one_of_this_kernel() -> None:
    found = list(int4_kernels.variants())
    assert {each.kernel.fn.__name__ for each in found} == {"int4_linear_kernel"}
    assert len({each.name for each in found}) == len(found)
