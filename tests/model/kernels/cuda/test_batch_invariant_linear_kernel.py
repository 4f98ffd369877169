"""linear_kernel by Triton's interpreter: equal to torch up to last bits; a row's bits depend on that row alone."""

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels.cuda.batch_invariant_linear_kernel import linear, linear_tiles
from support_shares import for_each

ROWS = linear_tiles(torch.float32).rows


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@for_each(("rows", "outputs", "inputs"), [(1, 64, 64), (0, 5, 8), (70, 130, 100), (3, 9, 17)])
@for_each("has_bias", [False, True])
def test_it_multiplies_as_torch_does(rows: int, outputs: int, inputs: int, has_bias: bool) -> None:
    x, weight = drawn(rows, inputs), drawn(outputs, inputs, seed=1)
    bias = drawn(outputs, seed=2) if has_bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(linear(x, weight, bias).double(), expected, rtol=3e-6, atol=1e-5)


def test_rows_may_lie_apart() -> None:
    wide, weight = drawn(7, 60), drawn(20, 40, seed=1)
    assert torch.equal(linear(wide[:, 10:50], weight, None), linear(wide[:, 10:50].contiguous(), weight, None))


@pytest.mark.share(1)
@pytest.mark.parametrize("inputs", [96, 100])
def test_a_row_has_the_same_bits_alone_and_at_any_place_of_any_batch(inputs: int) -> None:
    x, weight, bias = drawn(2 * ROWS + 9, inputs), drawn(80, inputs, seed=1), drawn(80, seed=2)
    together = linear(x, weight, bias)
    for at in (0, 1, ROWS - 1, ROWS, 2 * ROWS + 8):
        assert torch.equal(linear(x[at : at + 1], weight, bias)[0], together[at])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    assert torch.equal(linear(x[order], weight, bias), together[order])
    for count in (2, ROWS, ROWS + 5):
        assert torch.equal(linear(x[:count], weight, bias), together[:count])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_other_rows_that_are_not_finite_change_nothing(bad: float) -> None:
    x, weight = drawn(5, 64), drawn(70, 64, seed=1)
    expected = linear(x, weight, None)
    x[1] = bad
    assert torch.equal(linear(x, weight, None)[[0, 2, 3, 4]], expected[[0, 2, 3, 4]])


def test_the_tiles_depend_on_the_dtype_alone() -> None:
    assert linear_tiles(torch.bfloat16) == linear_tiles(torch.float16) != linear_tiles(torch.float32)
    assert linear_tiles(torch.float32).precision == "tf32x3"
