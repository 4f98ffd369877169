"""StoredRows: rows of a stored weight as a parameter of its own, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import PartOfWeight, StoredWeight


@dataclass(frozen=True, slots=True)
class StoredRows(PartOfWeight):
    """A StoredWeight (stored_weight.py) that is some rows of another one.

    Attributes:
        whole: the other one.
        rows: index in it of each row of the parameter.
    """

    whole: StoredWeight
    rows: Sequence[int]

    @property
    def shape(self) -> tuple[int, ...]:
        """See StoredWeight."""
        return (len(self.rows), *self.whole.shape[1:])

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; of adjacent rows no others are read."""
        rows = self.rows if part is None else self.rows[part[0]]
        columns = tuple(slice(0, size) for size in self.whole.shape[1:]) if part is None else part[1:]
        if not rows:
            return self.whole.dense((slice(0, 0), *columns), dtype)
        first, end = min(rows), max(rows) + 1
        adjacent = self.whole.dense((slice(first, end), *columns), dtype)
        if isinstance(rows, range) and rows.step == 1:
            return adjacent
        return adjacent[torch.tensor(rows) - first]

    @property
    def codes_type(self) -> str | None:
        """See StoredWeight."""
        return self.whole.codes_type

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        blocks, rows = self.whole.codes(), np.array(self.rows, np.int32)
        if blocks.order is not None:
            return BlockRows(blocks.type, blocks.rows, blocks.order[rows])
        if isinstance(self.rows, range) and self.rows.step == 1:
            return BlockRows(blocks.type, blocks.rows[self.rows.start : self.rows.stop])
        return BlockRows(blocks.type, blocks.rows, rows)
