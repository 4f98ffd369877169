"""float8_linear: products of 8-bit floats equal those of the dequantized numbers in float64, also at the limits."""

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.kernels import float8_linear
from chairlift.model.kernels.float8_linear import Float8Weight, check_products, linear, multiply, quantize_rows
from support_shares import for_each

CPU = torch.device("cpu")
SHAPES = [(1, 16, 16), (5, 48, 80), (33, 320, 512), (2, 16, 4096)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dequantized(values: Tensor, scales: Tensor) -> Tensor:
    return values.double() * scales.double()[:, None]


def reference(x: Tensor, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """The product of both sides, quantized and dequantized, in float64."""
    product = dequantized(*quantize_rows(x)) @ dequantized(weight.values, weight.scales).T
    return product if bias is None else product + bias.double()


@for_each("dtype", [torch.bfloat16, torch.float16, torch.float32])
@for_each(("rows", "outputs", "inputs"), SHAPES)
@for_each("has_bias", [False, True])
def test_a_product_is_that_of_the_dequantized_numbers(
    dtype: torch.dtype, rows: int, outputs: int, inputs: int, has_bias: bool
) -> None:
    factors = torch.logspace(-6, 2, outputs)[:, None]  # rows of one scale for all would be wrong
    x, weight = drawn(rows, inputs).to(dtype), Float8Weight(*quantize_rows(drawn(outputs, inputs, seed=1) * factors))
    bias = drawn(outputs, seed=2).to(dtype) if has_bias else None
    expected, found = reference(x, weight, bias), linear(x, weight, bias)
    assert found.dtype == dtype and found.shape == (rows, outputs)
    bound = torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    magnitude = dequantized(*quantize_rows(x)).abs() @ dequantized(weight.values, weight.scales).abs().T
    assert bool(((found.double() - expected).abs() <= bound * (magnitude + expected.abs() + 1e-3)).all())


def test_a_rounded_row_is_within_half_a_step_of_its_numbers_and_uses_the_whole_range() -> None:
    x = drawn(50, 64) * torch.logspace(-20, 20, 50)[:, None]
    values, scales = quantize_rows(x)
    assert values.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
    assert torch.equal(values.float().abs().amax(-1), torch.full((50,), 448.0))
    largest = x.double().abs().amax(-1, keepdim=True)
    error = (dequantized(values, scales) - x.double()).abs()
    assert bool((error <= x.double().abs() * 2**-4 * 1.001 + largest / 448 * 2**-10).all())


def test_rows_of_zeros_stay_zeros() -> None:
    x = torch.zeros(3, 32)
    x[1] = drawn(32)
    weight = Float8Weight(*quantize_rows(drawn(16, 32, seed=1)))
    found = linear(x, weight, None)
    assert not found[0].any() and not found[2].any() and found[1].any()
    zero = Float8Weight(*quantize_rows(torch.zeros(16, 32)))
    assert not linear(drawn(3, 32), zero, None).any()
    assert torch.equal(linear(drawn(3, 32), zero, torch.ones(16)), torch.ones(3, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_infinite_and_huge_numbers_become_the_largest_of_their_row_and_no_nan(dtype: torch.dtype) -> None:
    x = drawn(4, 32).to(dtype)
    x[1, 3], x[2, 5], x[3, 7] = torch.inf, -torch.inf, torch.finfo(dtype).max
    values, scales = quantize_rows(x)
    assert bool(scales.isfinite().all()) and bool(values.float().isfinite().all())
    assert values[1, 3].float() == 448 and values[2, 5].float() == -448 and values[3, 7].float() == 448
    weight = Float8Weight(*quantize_rows(drawn(16, 32, seed=1)))
    assert not linear(x, weight, None).isnan().any()
    assert torch.equal(linear(x, weight, None)[0], linear(x[:1].repeat(4, 1), weight, None)[0])


def test_nan_makes_nan_of_its_own_row_alone() -> None:
    x = drawn(3, 32)
    x[1, 4] = torch.nan
    found = linear(x, Float8Weight(*quantize_rows(drawn(16, 32, seed=1))), None)
    assert found[1].isnan().all() and found[0].isfinite().all() and found[2].isfinite().all()


@pytest.mark.parametrize("small", [0.0, 1e-38, 1e-42])
def test_numbers_near_zero_have_a_finite_scale(small: float) -> None:
    values, scales = quantize_rows(torch.full((2, 16), small))
    assert bool((scales > 0).all()) and bool(values.float().isfinite().all())
    assert bool(((dequantized(values, scales) - small).abs() <= 1e-30).all())


def test_the_rounding_of_a_row_does_not_depend_on_other_rows() -> None:
    x = drawn(40, 64)
    together, scales = quantize_rows(x)
    for at in (0, 7, 39):
        alone, scale = quantize_rows(x[at : at + 1])
        assert torch.equal(alone.view(torch.uint8)[0], together.view(torch.uint8)[at]) and scale[0] == scales[at]


def test_no_rows_are_no_results() -> None:
    weight = Float8Weight(*quantize_rows(drawn(16, 32)))
    found = linear(torch.zeros(0, 32, dtype=torch.bfloat16), weight, None)
    assert found.shape == (0, 16) and found.dtype == torch.bfloat16


def test_a_weight_knows_its_bytes() -> None:
    assert Float8Weight(*quantize_rows(drawn(16, 32))).num_bytes == 16 * 32 + 16 * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_trial_passes_where_products_are_right(dtype: torch.dtype) -> None:
    check_products(dtype, CPU)


@pytest.mark.parametrize("wrong", ["scale", "row", "nan"])
def test_the_trial_finds_wrong_products(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def multiplied(values: Tensor, scales: Tensor, *rest: object) -> Tensor:
        if wrong == "scale":
            return multiply(values, scales.mean().expand_as(scales).contiguous(), *rest)  # type: ignore[arg-type]
        found = multiply(values, scales, *rest)  # type: ignore[arg-type]
        if wrong == "row":
            return found.roll(1, 0)
        found[-1, 0] = torch.nan if len(found) > 1 else found[-1, 0]
        return found

    monkeypatch.setattr(float8_linear, "multiply", multiplied)
    with pytest.raises(
        ConfigError,
        match=r"quantization 'fp8': a product .* on the device cpu is wrong by .*; leave quantization out",
    ) as caught:
        check_products(torch.bfloat16, CPU)
    assert caught.value.details["option"] == "quantization"


def test_a_torch_without_the_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiplied(*_: object) -> Tensor:
        raise RuntimeError("no such product\nand a trace")

    monkeypatch.setattr(float8_linear, "multiply", multiplied)
    with pytest.raises(
        ConfigError, match=r"torch \S+ cannot multiply 8-bit floats on the device cpu: no such product; leave quant"
    ):
        check_products(torch.bfloat16, CPU)


@pytest.mark.parametrize(("dtype", "device", "known"), [
    (torch.float64, "cpu", "bfloat16, float16, float32"), (torch.float16, "cuda", "bfloat16"),
    (torch.float32, "cuda:1", "bfloat16"), (torch.bfloat16, "mps", "nothing"),
])  # fmt: skip
def test_a_dtype_without_products_is_named(dtype: torch.dtype, device: str, known: str) -> None:
    name = str(dtype).removeprefix("torch.")
    message = f"on the device {device} yield {known}, the model's dtype is {name}; set dtype to bfloat16"
    with pytest.raises(ConfigError, match=message):
        check_products(dtype, torch.device(device))
