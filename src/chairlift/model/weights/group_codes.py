"""GroupCodes: a quantized matrix as integer codes with a scale for each group of inputs, not packed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class GroupCodes:
    """A matrix of O outputs and I inputs, whose rows have I / group_size groups.

    The value at row o and column i, with g = i // group_size, is

        scales[o, g] * (codes[o, i] - offset) - minima[o, g]       without a table
        scales[o, g] * table[codes[o, i]] - minima[o, g]           with a table

    where minima of None are zeros. With super-scales, b = g * group_size // 256, the scales are products:

        scales[o, g] = super_scales[o, b] * integer_scales[o, g]
        minima[o, g] = super_minima[o, b] * integer_minima[o, g]

    A product of a float16 and an integer of 8 bits is exact in float32, so both forms are the same numbers, and none is
    rounded before the value itself.

    Attributes:
        codes: uint8 [O, I], 0 .. 2**bits - 1; int8 [O, I] for 8 bits.
        bits: 4, 5, 6 or 8.
        group_size: 16 or 32.
        scales: float32 [O, I / group_size].
        minima: float32 [O, I / group_size], or None.
        offset: the code of zero; 0 with a table and with minima.
        table: float32 [2**bits], or None.
        super_scales: float32 [O, I / 256], or None; and so the three below.
        integer_scales: [O, I / group_size], uint8 0 .. 63, or int8.
        super_minima: float32 [O, I / 256].
        integer_minima: uint8 [O, I / group_size], 0 .. 63.
    """

    codes: NDArray[np.uint8] | NDArray[np.int8]
    bits: int
    group_size: int
    scales: NDArray[np.float32]
    minima: NDArray[np.float32] | None = None
    offset: int = 0
    table: NDArray[np.float32] | None = None
    super_scales: NDArray[np.float32] | None = None
    integer_scales: NDArray[np.uint8] | NDArray[np.int8] | None = None
    super_minima: NDArray[np.float32] | None = None
    integer_minima: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        assert inputs % self.group_size == 0
        assert self.scales.shape == (outputs, inputs // self.group_size)
        assert self.minima is None or self.minima.shape == self.scales.shape

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, inputs = self.codes.shape
        return outputs, inputs

    def dense(self) -> NDArray[np.float32]:
        """Return the values, float32 [O, I]: a product and a difference, each rounded once."""
        if self.table is not None:
            values = self.table[self.codes]
        else:
            values = self.codes.astype(np.float32)
            values -= np.float32(self.offset)
        groups = values.reshape(*self.scales.shape, self.group_size)
        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale gives infinity or NaN, as in ggml
            groups *= self.scales[..., None]
            if self.minima is not None:
                groups -= self.minima[..., None]
        return values
