"""Int4Weight, linear: products with weights of 4-bit codes, which are dequantized to the dtype of the inputs.

number [O, I]     scales[o, g] * codes[o, i] + minima[o, g], float32, where g = i // 32
x weight^T        with the numbers rounded to x's dtype: those of a weight that is dequantized when it is loaded
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32
"""Inputs with one scale and one minimum."""


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """A weight [O, I] of 4-bit codes; I is a multiple of GROUP.

    Attributes:
        codes: uint8 [O, I / 2], dense; byte 16 g + k has inputs 32 g + k (lower bits) and 32 g + 16 + k.
        scales, minima: float16 or float32 [O, I / 32], dense.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """O and I."""
        return len(self.codes), 2 * self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and minima."""
        return self.codes.nbytes + self.scales.nbytes + self.minima.nbytes

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers, rounded to a dtype, [O, I]."""
        pairs = self.codes.view(len(self.codes), -1, GROUP // 2)
        numbers = torch.cat((pairs & 15, pairs >> 4), dim=-1).float()
        numbers = numbers * self.scales.float()[..., None] + self.minima.float()[..., None]
        return numbers.flatten(1).to(dtype)


def linear(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """Return x [T, I] times the transpose of weight [O, I], plus bias [O]: [T, O] in x's dtype."""
    return functional.linear(x, weight.dense(x.dtype), bias)
