"""BlockRows: a quantized matrix as rows of ggml's blocks, the form in which kernels take codes from a file."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.model.config.gguf_types import GGMLType


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """A matrix [outputs, inputs]; weights/gguf_blocks.py describes the blocks.

    Attributes:
        type: the type of the blocks.
        rows: uint8 [rows, bytes of a row]; may be mapped from a file.
        order: int32 [outputs], the row of each output; None for the same order.
    """

    type: GGMLType
    rows: NDArray[np.uint8]
    order: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        inputs = self.rows.shape[1] // self.type.block_bytes * self.type.block_size
        return len(self.rows) if self.order is None else len(self.order), inputs
