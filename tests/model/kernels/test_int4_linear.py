"""Int4Weight: numbers by the formula, and products that are those of the numbers in the dtype of the inputs."""

import pytest
import torch

from chairlift.model.kernels.int4_linear import linear
from support_int4 import drawn_weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_and_products(dtype: torch.dtype) -> None:
    weight = drawn_weight(6, 96)
    dense = weight.dense(torch.float32)
    for output, place in ((0, 0), (3, 15), (5, 16), (2, 31), (1, 32), (4, 95)):
        group, within = divmod(place, 32)
        byte = int(weight.codes[output, 16 * group + within % 16])
        code = byte & 15 if within < 16 else byte >> 4
        number = float(weight.scales[output, group].float() * code + weight.minima[output, group].float())
        assert float(dense[output, place]) == number
    x, bias = torch.randn(4, 96).to(dtype), torch.randn(6).to(dtype)
    expected = torch.nn.functional.linear(x, dense.to(dtype), bias)
    assert torch.equal(linear(x, weight, bias), expected)
    assert weight.shape == (6, 96) and weight.num_bytes == 6 * 48 + 2 * 6 * 3 * 2
