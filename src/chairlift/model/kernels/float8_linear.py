"""Float8Weight, quantize_rows, linear: products of 8-bit floats (e4m3) with one scale for each row of both sides.

    weight [O, I]   quantized at load; row o is scales[o] times numbers of at most 448
    x [T, I]        quantized in each call, in the same way: row t by its own largest number
    x weight^T      exact products of 8-bit floats, sums in float32, times both scales, plus the bias, rounded once

A row of x has its scale from itself alone, so other rows of a step do not change how it is rounded. Numbers that are
infinite become the row's largest finite ones; NaN makes NaN of its row only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.device.dtypes import FLOAT8_MULTIPLE
from chairlift.model.device.kv_dtype import FLOAT8, FLOAT8_LIMIT

LEAST_MAXIMUM = 1e-30
"""Least number that a row's scale is computed from: its inverse is finite, and a row of zeros stays zeros."""

DTYPES = {"cuda": (torch.bfloat16,), "cpu": (torch.bfloat16, torch.float16, torch.float32)}
"""Type of a device -> dtypes of the results of torch's products with a scale for each row."""

TRIAL_ROWS = (1, 3, 40)
"""Rows of the trial products."""

ROUNDINGS = 4
"""Largest error of a trial product, in roundings of its largest result."""


@dataclass(frozen=True, slots=True, eq=False)
class Float8Weight:
    """A weight [O, I] of 8-bit floats.

    Attributes:
        values: float8_e4m3fn [O, I], dense.
        scales: float32 [O]; row o of the weight is values[o] * scales[o].
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """O and I."""
        return self.values.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [N, I] as 8-bit floats [N, I] and the scales float32 [N] by which they are multiplied."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp(LEAST_MAXIMUM, torch.finfo(x.dtype).max)
    values = (wide * (FLOAT8_LIMIT / largest)).clamp_(-FLOAT8_LIMIT, FLOAT8_LIMIT).to(FLOAT8)
    return values, (largest / FLOAT8_LIMIT).squeeze(-1)


def multiply(values: Tensor, scales: Tensor, weight: Float8Weight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return quantized rows [T, I] times the transpose of weight [O, I], plus bias [O], in `dtype` [T, O].

    Both O and I must be multiples of FLOAT8_MULTIPLE on a CUDA device.
    """
    if not len(values):
        return scales.new_empty(0, len(weight.values), dtype=dtype)
    product: Tensor = torch._scaled_mm(
        values, weight.values.t(), scale_a=scales[:, None], scale_b=weight.scales[None], bias=bias, out_dtype=dtype
    )
    return product


def linear(x: Tensor, weight: Float8Weight, bias: Tensor | None) -> Tensor:
    """Return x [T, I], quantized row by row, times the transpose of weight [O, I], plus bias [O], in x's dtype."""
    return multiply(*quantize_rows(x), weight, bias, x.dtype)


def check_products(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ConfigError unless torch has these products on a device with results of a dtype; a trial decides."""
    known = DTYPES.get(device.type, ())
    if dtype not in known:
        names = ", ".join(str(each).removeprefix("torch.") for each in known) or "nothing"
        raise _refused(
            f"products of 8-bit floats on the device {device} yield {names}, the model's dtype is "
            f"{str(dtype).removeprefix('torch.')}; set dtype to bfloat16"
        )
    rows, outputs, inputs = TRIAL_ROWS[-1], 3 * FLOAT8_MULTIPLE, 5 * FLOAT8_MULTIPLE
    x, parts = (
        torch.linspace(-1, 1, count * inputs).mul(factor).sin().view(count, inputs)
        .mul(torch.logspace(0, 1, count)[:, None]).to(device=device, dtype=dtype)
        for count, factor in ((rows, 7.0), (outputs, 31.0))
    )  # fmt: skip
    weight, bias = Float8Weight(*quantize_rows(parts)), torch.linspace(-1, 1, outputs, device=device).to(dtype)
    values, scales = quantize_rows(x)
    wide, wide_weight = (
        each.double() * by.double()[:, None] for each, by in ((values, scales), (weight.values, weight.scales))
    )
    # The reference has the quantized numbers: only the product is on trial, not the quantization.
    exact = wide @ wide_weight.T + bias.double()
    try:
        products = [multiply(values[:count], scales[:count], weight, bias, dtype) for count in TRIAL_ROWS]
        found, expected = torch.cat(products).double(), torch.cat([exact[:count] for count in TRIAL_ROWS])
        error = float((found - expected).abs().max())
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as failure:
        reason = str(failure).partition("\n")[0] or type(failure).__name__
        raise _refused(
            f"torch {torch.__version__} cannot multiply 8-bit floats on the device {device}: {reason}; leave "
            "quantization out"
        ) from failure
    limit = (ROUNDINGS * torch.finfo(dtype).eps + 1e-5) * float(exact.abs().max())
    # Also if the error is NaN.
    if not error <= limit:
        raise _refused(
            f"a product of 8-bit floats on the device {device} is wrong by {error:.3g}, the limit is {limit:.3g}; "
            "leave quantization out"
        )


def _refused(why: str) -> ConfigError:
    return ConfigError(f"quantization 'fp8': {why}", option="quantization")
