"""IntegerGroups: integer codes with a scale and a zero for each group of inputs, written as ggml's blocks.

The number at output o and input i is (codes[o, i] - zeros[o, g]) * scales[o, g], where g is the group of input i.
Blocks of 32 inputs have it as follows, with scales and minima in float16:

    bits, zeros                       type    bits of a block
    2 or 3                            Q4_0    code - zero + 8
    4, all 8                          Q4_0    code
    4, others                         Q4_1    code, and the minimum -zero * scale
    8, all 128                        Q8_0    code - 128

float16 scales are kept as they are. Others, and minima, are rounded to float16, by at most MAX_ROUNDING and MAX_SHIFT;
where it would be by more, there are no blocks. On average that is a fifth of what rounding numbers to bfloat16 changes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.gguf_types import TYPES_BY_NAME, GGMLType
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.formats.dense_rows import dense_rows

BLOCK = 32
"""Inputs of a block."""

MAX_ROUNDING = 2**-9
"""The largest share by which scales may be rounded: that of bfloat16."""

MAX_SHIFT = 2**-6
"""The largest share of a scale by which minima may be rounded; bfloat16 rounds a number of 8 scales by as much."""

Q4_0, Q4_1, Q8_0 = TYPES_BY_NAME["Q4_0"], TYPES_BY_NAME["Q4_1"], TYPES_BY_NAME["Q8_0"]


@dataclass(frozen=True, slots=True)
class IntegerGroups:
    """What the codes of a matrix [O, I] mean.

    Attributes:
        bits: of a code: 2, 3, 4 or 8.
        scales: float32 [O, G].
        zeros: codes of zero, float32 [O, G].
        groups: the group of each input, int64 [I].
    """

    bits: int
    scales: Tensor
    zeros: Tensor
    groups: Tensor

    @property
    def type(self) -> GGMLType | None:
        """The type of blocks that have these numbers; None if none has."""
        if len(self.groups) % BLOCK or not torch.equal(self.groups, self.groups[::BLOCK].repeat_interleave(BLOCK)):
            return None
        sizes = self.scales.abs()
        if not _fits_half(self.scales, sizes * MAX_ROUNDING):
            return None
        if self.bits < 4:
            return Q4_0
        if (self.zeros == 2 ** (self.bits - 1)).all():
            return Q4_0 if self.bits == 4 else Q8_0
        return Q4_1 if self.bits == 4 and _fits_half(self.scales * self.zeros, sizes * MAX_SHIFT) else None

    def block_rows(self, codes: Callable[[range], Tensor]) -> BlockRows:
        """Return the matrix in blocks of `type`, which must not be None.

        Args:
            codes: returns the codes of some outputs, uint8 [n, I].
        """
        kind, of_blocks = self.type, self.groups[::BLOCK]
        assert kind is not None, "no type of blocks has these numbers"

        def read(rows: range) -> Tensor:
            own = slice(rows.start, rows.stop)
            scales, zeros = self.scales[own].index_select(1, of_blocks), self.zeros[own].index_select(1, of_blocks)
            steps = codes(rows).view(len(rows), -1, BLOCK)
            if kind == Q8_0:
                stored = steps ^ 0x80
            else:
                if self.bits < 4:
                    steps = (steps + 8 - zeros.to(torch.uint8)[..., None]) & 15
                stored = steps[..., : BLOCK // 2] | steps[..., BLOCK // 2 :] << 4
            factors = [scales, -zeros * scales] if kind == Q4_1 else [scales]
            halves = torch.stack(factors, dim=-1).half().view(torch.uint8)
            return torch.cat([halves, stored], dim=-1).flatten(1)

        shape = len(self.scales), kind.row_bytes(len(self.groups))
        return BlockRows(kind, dense_rows(shape, None, torch.uint8, read).numpy())


def _fits_half(numbers: Tensor, limits: Tensor) -> bool:
    """Return whether float16 changes no number by more than its limit."""
    return bool(((numbers.half().float() - numbers).abs() <= limits).all())
