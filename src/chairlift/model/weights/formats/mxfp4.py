"""MXFP4Weight, mxfp4_experts: gpt-oss's experts in safetensors, codes of 4 bits with a power of two for each 32 inputs.

    name_blocks   uint8 [E, O, I / 32, 16]   byte j of a block has the codes of inputs 2 j (lower bits) and 2 j + 1
    name_scales   uint8 [E, O, I / 32]       e, for the scale 2**(e - 127); 255 is not a number

A code is a sign and 3 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6. ggml's blocks of the same name have the scale's byte first, and
the codes of inputs j and j + 16 in byte j.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chairlift.model.config.gguf_types import TYPES_BY_NAME
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.gguf_blocks import MXFP4_NAN, dequantize
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import StoredWeight, damaged

MXFP4 = TYPES_BY_NAME["MXFP4"]
BLOCK = MXFP4.block_size


@dataclass(frozen=True, slots=True)
class MXFP4Weight:
    """A StoredWeight (stored_weight.py) [O, I] of one expert.

    Attributes:
        blocks, scales: of all experts, see above.
        index: the expert.
        rows: its outputs that belong to this weight: a start, a stop and a step.
    """

    blocks: StoredWeight
    scales: StoredWeight
    index: int
    rows: range

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.blocks.file

    @property
    def name(self) -> str:
        """See StoredWeight: that of the blocks."""
        return self.blocks.name

    @property
    def shape(self) -> tuple[int, ...]:
        """See StoredWeight."""
        return len(self.rows), self.blocks.shape[2] * BLOCK

    @property
    def dtype(self) -> str:
        """See StoredWeight."""
        return MXFP4.name

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight; bfloat16 has the same numbers, but for the smallest ones."""
        return "float32"

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; raises ModelError for a scale that is not a number."""
        return dense_rows(self.shape, part, dtype or torch.float32, self._numbers)

    @property
    def codes_type(self) -> str:
        """See StoredWeight: the type of ggml with the same numbers."""
        return MXFP4.name

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        count, inputs = self.shape
        rows = dense_rows((count, MXFP4.row_bytes(inputs)), None, torch.uint8, self._stored)
        return BlockRows(MXFP4, rows.numpy())

    def _numbers(self, rows: range) -> Tensor:
        stored = self._stored(rows)
        if (stored.view(len(stored), -1, MXFP4.block_bytes)[..., 0] == MXFP4_NAN).any():
            raise damaged(self.scales, "has scales that are not a number")
        return torch.from_numpy(dequantize(stored.numpy(), MXFP4))

    def _stored(self, rows: range) -> Tensor:
        """Return some rows in ggml's blocks, uint8 [n, bytes of a row]."""
        own = self.rows[rows.start : rows.stop]
        at = slice(self.index, self.index + 1), slice(own[0], own[-1] + 1)
        pairs = self.blocks.dense((*at, *(slice(0, size) for size in self.blocks.shape[2:])))[0, :: own.step]
        scales = self.scales.dense((*at, slice(0, self.scales.shape[2])))[0, :: own.step]
        codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
        halves = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
        return torch.cat((scales[..., None], halves), dim=-1).flatten(1)


def mxfp4_experts(
    blocks: StoredWeight, scales: StoredWeight, parts: list[tuple[str, range]]
) -> Iterator[tuple[int, str, MXFP4Weight]]:
    """Yield each expert's number, the name of each of its parts and its weight; `parts` have these outputs.

    Raises ModelError for tensors that do not fit.
    """
    if len(blocks.shape) != 4 or blocks.shape[3] != BLOCK // 2 or blocks.dtype != "U8":
        raise damaged(blocks, f"has dtype {blocks.dtype} and shape {blocks.shape}, MXFP4 has U8 and 16 bytes a block")
    if scales.shape != blocks.shape[:3] or scales.dtype != "U8":
        raise damaged(scales, f"has dtype {scales.dtype} and shape {scales.shape}, not U8 and {blocks.shape[:3]}")
    for index in range(blocks.shape[0]):
        for part, rows in parts:
            yield index, part, MXFP4Weight(blocks, scales, index, rows)
