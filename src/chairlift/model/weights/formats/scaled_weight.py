"""ScaledWeight: a StoredWeight of small codes, each multiplied with the scale of its block of the matrix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.formats.integer_blocks import IntegerGroups
from chairlift.model.weights.formats.packed_codes import WORD_BITS, unpacked
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import StoredWeight, damaged

Block = tuple[int, int]
"""Rows and columns that have one scale: (1, 128) for groups of 128 inputs, (128, 128) for square blocks."""

SCALE_DTYPES = ("F32", "F16", "BF16", "F8_E8M0")
"""Safetensors' names of the dtypes that scales may have; the last has powers of two only."""

FLOAT8_NUMBERS = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
"""The number of each byte of float8_e4m3fn: looked up, they are three times as fast as torch's conversion."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A StoredWeight (stored_weight.py) [O, I]: (code - zero point) * scale, in float32, rounded once.

    It has codes if they are integers and blocks of ggml have the same numbers.

    Attributes:
        steps: codes, int8 or float8_e4m3fn [O, I]; with `bits` int32 [O, ceil(I * bits / 32)].
        scales: of a dtype in SCALE_DTYPES, one for each block: [ceil(O / rows), ceil(I / columns)], or with one axis.
        shape: O and I.
        dtype: see StoredWeight.
        block: rows and columns of a block.
        bits: 4 or 8, for codes in words, lowest bits first, to which 2**(bits-1) was added; 0 for others.
        zero_points: int8, in the shape of the scales; or int32 [ceil(O * bits / 32), I / columns], in words as codes.
        group_index: int32 [I], the group of each column; None for groups of neighbours.
    """

    steps: StoredWeight
    scales: StoredWeight
    shape: tuple[int, ...]
    dtype: str
    block: Block
    bits: int = 0
    zero_points: StoredWeight | None = None
    group_index: StoredWeight | None = None

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.steps.file

    @property
    def name(self) -> str:
        """See StoredWeight."""
        return self.steps.name

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight."""
        return "float32"

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; raises ModelError for codes and scales that are infinite or NaN, and for a wrong index."""
        groups = self._groups()

        def read(rows: range) -> Tensor:
            numbers = self._codes(rows)
            first, last = rows[0] // self.block[0], rows[-1] // self.block[0] + 1
            scales = _rows_of(self.scales, first, last).float()
            check_finite(self.scales, scales)
            places = torch.arange(rows[0], rows[-1] + 1) // self.block[0] - first
            if self.zero_points is not None:
                numbers -= _spread(self._zero_points(first, last), places, groups)
            numbers *= _spread(scales, places, groups)
            return numbers

        return dense_rows(self.shape, part, dtype or torch.float32, read)

    @property
    def codes_type(self) -> str | None:
        """See StoredWeight. Raises as dense()."""
        kind = None if self.steps.dtype.startswith("F") else self._integer_groups().type
        return None if kind is None else kind.name

    def codes(self) -> BlockRows:
        """See StoredWeight."""

        def unsigned(rows: range) -> Tensor:
            stored = _rows_of(self.steps, rows[0], rows[-1] + 1)
            return unpacked(stored, self.bits)[:, : self.shape[1]] if self.bits else stored.view(torch.uint8) ^ 0x80

        return self._integer_groups().block_rows(unsigned)

    def _integer_groups(self) -> IntegerGroups:
        (outputs, inputs), bits = self.shape, self.bits or 8
        num_blocks, groups = -(-outputs // self.block[0]), self._groups()
        scales = _rows_of(self.scales, 0, num_blocks).float()
        check_finite(self.scales, scales)
        points = torch.zeros(1, 1) if self.zero_points is None else self._zero_points(0, num_blocks)
        zeros = (points + 2 ** (bits - 1)).expand_as(scales)
        places = torch.arange(outputs) // self.block[0]
        of_inputs = torch.zeros(inputs, dtype=torch.int64) if groups is None else groups
        return IntegerGroups(bits, scales[places], zeros[places], of_inputs)

    def _codes(self, rows: range) -> Tensor:
        """Return the codes of some rows, float32 [n, I]; those in words are signed again."""
        stored = _rows_of(self.steps, rows[0], rows[-1] + 1)
        if self.bits:
            return signed(unpacked(stored, self.bits)[:, : self.shape[1]], self.bits)
        if not stored.is_floating_point():
            return stored.float()
        places = stored.reshape(-1).view(torch.uint8).int()
        numbers = FLOAT8_NUMBERS.index_select(0, places).view(stored.shape)
        check_finite(self.steps, numbers.sum())  # it cannot overflow, and is NaN if one of them is
        return numbers

    def _zero_points(self, first: int, last: int) -> Tensor:
        """Return the zero points of some rows of blocks, float32 [last - first, groups]."""
        assert self.zero_points is not None
        if not is_packed(self.zero_points, self.bits, self.shape[0]):
            return _rows_of(self.zero_points, first, last).float()
        in_word = WORD_BITS // self.bits
        words = _rows_of(self.zero_points, first // in_word, -(-last // in_word))
        points = unpacked(words.T, self.bits).T[first % in_word :][: last - first]
        return signed(points, self.bits)

    def _groups(self) -> Tensor | None:
        """Return the group of each column, int64 [I]; None where a row has one group."""
        count = -(-self.shape[1] // self.block[1])
        if count == 1:
            return None
        neighbours = torch.arange(self.shape[1]) // self.block[1]
        if self.group_index is None:
            return neighbours
        index = self.group_index.dense().long()
        if bool((index == -1).any()):  # a file that has the tensor, but no order
            return neighbours
        if not torch.equal(index.sort().values, neighbours):
            raise damaged(
                self.group_index, f"does not have each of {count} groups for {self.block[1]} inputs of {self.shape[1]}"
            )
        return index


def scaled_weight(
    codes: StoredWeight, scales: StoredWeight, dtype: str, blocks: Sequence[Block], *,
    shape: tuple[int, ...] | None = None, bits: int = 0,
    zero_points: StoredWeight | None = None, group_index: StoredWeight | None = None,
) -> ScaledWeight:  # fmt: skip
    """Return the weight of these tensors, of which only the headers are read; arguments as ScaledWeight has them.

    The shape of the scales says what has one: the matrix, a row, a block of a size in `blocks`, or an equal part of a
    row. Raises ModelError for tensors that do not fit.
    """
    shape = codes.shape if shape is None else shape
    if len(shape) != 2:
        raise damaged(codes, f"has shape {shape}, a quantized weight requires 2 axes")
    if scales.dtype not in SCALE_DTYPES:
        raise damaged(scales, f"has dtype {scales.dtype}; supported for scales are {', '.join(SCALE_DTYPES)}")
    block = _block_of(scales, shape, blocks)
    if zero_points is not None and not is_packed(zero_points, bits, shape[0]):
        if zero_points.dtype not in ("I8", "I32", "I64") or _two_axes(zero_points) != _two_axes(scales):
            raise damaged(
                zero_points,
                f"has dtype {zero_points.dtype} and shape {zero_points.shape}, its scales have shape {scales.shape}",
            )
    elif zero_points is not None and (block[0] > 1 or zero_points.shape[1] != -(-shape[1] // block[1])):
        raise damaged(zero_points, f"has shape {zero_points.shape}, its scales have shape {scales.shape}")
    if group_index is not None and (group_index.dtype not in ("I32", "I64") or group_index.shape != shape[1:]):
        raise damaged(group_index, f"has dtype {group_index.dtype} and shape {group_index.shape}, not ({shape[1]},)")
    return ScaledWeight(codes, scales, shape, dtype, block, bits, zero_points, group_index)


def signed(codes: Tensor, bits: int) -> Tensor:
    """Return codes without the 2**(bits-1) that words add: uint8 -> float32."""
    numbers: Tensor = codes.float() - 2 ** (bits - 1)
    return numbers


def is_packed(zero_points: StoredWeight, bits: int, outputs: int) -> bool:
    """Return whether the zero points of this many outputs are in words along that axis."""
    words = -(-outputs * bits // WORD_BITS)
    return bits > 0 and zero_points.dtype == "I32" and len(zero_points.shape) == 2 and zero_points.shape[0] == words


def check_finite(tensor: StoredWeight, numbers: Tensor) -> None:
    """Raise ModelError that names a tensor unless its numbers are finite."""
    if not bool(numbers.isfinite().all()):
        raise damaged(tensor, "has numbers that are infinite or not a number")


def _block_of(scales: StoredWeight, shape: tuple[int, ...], blocks: Sequence[Block]) -> Block:
    outputs, inputs = shape
    if math.prod(scales.shape) == 1:
        return outputs, inputs
    if len(scales.shape) > 2:
        raise damaged(scales, f"has shape {scales.shape}, which does not fit a weight of shape {shape}")
    rows, columns = _two_axes(scales)
    for block in blocks:
        if (rows, columns) == (-(-outputs // block[0]), -(-inputs // block[1])):
            return block
    if rows != outputs or columns == 0 or inputs % columns:
        raise damaged(scales, f"has shape {scales.shape}, which does not fit a weight of shape {shape}")
    return 1, inputs // columns


def _two_axes(tensor: StoredWeight) -> tuple[int, ...]:
    """Return the shape of scales or zero points with a column where they have one for each row."""
    return (*tensor.shape, 1, 1)[:2] if len(tensor.shape) < 2 else tensor.shape


def _rows_of(tensor: StoredWeight, first: int, last: int) -> Tensor:
    """Return rows of a tensor of up to 2 axes, [n, columns], in its own dtype."""
    if math.prod(tensor.shape) == 1:
        return tensor.dense().reshape(1, 1)
    part = (slice(first, last), slice(None))[: len(tensor.shape)]
    return tensor.dense(part).reshape(last - first, -1)


def _spread(values: Tensor, places: Tensor, groups: Tensor | None) -> Tensor:
    """Return the value of each number: [blocks, groups] -> [n, I], or [n, 1] where a row has one value."""
    rows = values[places]
    return rows if groups is None else rows.index_select(1, groups)
