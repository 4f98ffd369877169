"""The format bitsandbytes: safetensors whose linear layers have 4 bits (nf4, fp4) or 8 bits (int8) a number.

tensors of a layer X [O, I] with blocks of B numbers, which run on across the rows:
X.weight                   uint8 [O * I / 2, 1], the first number in the high bits; or these bytes in another dtype
X.weight.absmax            float32 [blocks]; uint8 with double quantization
X.weight.quant_map         float32 [16]
X.weight.nested_absmax     float32 [nested blocks]   only with double quantization
X.weight.nested_quant_map  float32 [256]             only with double quantization
X.weight.quant_state.bitsandbytes__nf4 or __fp4      uint8: JSON with O, I, B, and the offset of absmax
a number is quant_map[code] * absmax, where absmax may be nested_quant_map[code] * nested_absmax + offset

X.weight int8 [O, I], X.SCB float32 [O], X.weight_format uint8 [], which is 0
a number is code * SCB / 127

All other tensors are those of the format safetensors.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chairlift.model.config.quantized_checkpoint import quantization_method
from chairlift.model.weights.formats import safetensors
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.formats.safetensors import stored_files
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly, StoredWeight, by_name, damaged

__all__ = ["claims", "stored_files", "stored_weights"]

METHOD = "bitsandbytes"
STATE = ".quant_state.bitsandbytes__"
KINDS = ("nf4", "fp4")
"""Types of 4 bits; the name of the tensor with the quant_state ends with one of them."""

FOUR_BIT_PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
"""Ends of the names of further tensors of a weight in 4 bits."""

PACKED_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
"""Dtypes of bnb_4bit_quant_storage -> bytes of an element."""

INT8_PARTS = ("SCB", "weight_format")
"""Names of further tensors of a module with a weight in 8 bits."""


@dataclass(frozen=True, slots=True)
class QuantState:
    """What the JSON of a weight in 4 bits says.

    Attributes:
        shape: O and I of the weight.
        block_size: numbers with one absmax.
        nested_block_size: blocks with one nested_absmax; None without double quantization.
        offset: is added to each absmax that is quantized.
    """

    shape: tuple[int, int]
    block_size: int
    nested_block_size: int | None
    offset: float

    @property
    def num_numbers(self) -> int:
        """Numbers of the weight."""
        return self.shape[0] * self.shape[1]

    @property
    def num_blocks(self) -> int:
        """Blocks of the weight; the last one may be shorter."""
        return -(-self.num_numbers // self.block_size)


@dataclass(frozen=True, slots=True)
class BitsandbytesWeight(DenseOnly):
    """A StoredWeight (stored_weight.py) of one of the types nf4, fp4, int8.

    Attributes:
        stored: the tensor with the codes.
        shape: O and I.
        dtype: name of the type.
        read: returns whole rows in float32, [n, I], for ascending numbers of rows.
    """

    stored: StoredWeight
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[range], Tensor]

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.stored.file

    @property
    def name(self) -> str:
        """See StoredWeight."""
        return self.stored.name

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight: the dtype in which bitsandbytes multiplies codes and scales."""
        return "float32"

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; raises ModelError for a scale that is infinite or NaN."""
        return dense_rows(self.shape, part, dtype or torch.float32, self.read)


@dataclass(frozen=True, slots=True)
class FourBitNumbers:
    """The tensors of a weight in 4 bits; nested_absmax and nested_quant_map are None without double quantization."""

    state: QuantState
    packed: StoredWeight
    absmax: StoredWeight
    quant_map: StoredWeight
    nested_absmax: StoredWeight | None
    nested_quant_map: StoredWeight | None

    def read(self, rows: range) -> Tensor:
        """Return some rows in float32, [n, I], computed from whole blocks. Raises ModelError."""
        columns, size = self.state.shape[1], self.state.block_size
        begin, end = rows[0] * columns, (rows[-1] + 1) * columns
        blocks = range(begin // size, -(-end // size))
        packed = self.packed.dense().view(-1).view(torch.uint8)[blocks.start * size // 2 : blocks.stop * size // 2]
        quant_map, codes = _finite(self.quant_map), torch.arange(256)
        pairs = torch.stack((quant_map[codes >> 4], quant_map[codes & 15]), dim=1)  # byte -> its two numbers
        numbers = pairs.view(torch.int64).view(-1).index_select(0, packed.int()).view(torch.float32)  # a pair at once
        scales, num_whole = self._scales(blocks), len(numbers) // size
        numbers[: num_whole * size].view(-1, size).mul_(scales[:num_whole, None])
        numbers[num_whole * size :] *= scales[num_whole:]
        first = blocks.start * size
        return numbers[begin - first : end - first].view(-1, columns)

    def _scales(self, blocks: range) -> Tensor:
        """Return the absmax of some blocks, float32 [n]. Raises ModelError."""
        own = slice(blocks.start, blocks.stop)
        if self.nested_absmax is None or self.nested_quant_map is None or self.state.nested_block_size is None:
            return _finite(self.absmax, own)
        factors = _finite(self.nested_absmax)[torch.arange(blocks.start, blocks.stop) // self.state.nested_block_size]
        return _finite(self.nested_quant_map)[self.absmax.dense()[own].int()] * factors + self.state.offset


@dataclass(frozen=True, slots=True)
class Int8Numbers:
    """The tensors of a weight in 8 bits."""

    codes: StoredWeight
    scales: StoredWeight

    def read(self, rows: range) -> Tensor:
        """Return some rows in float32, [n, I]. Raises ModelError.

        bitsandbytes multiplies with the float32 nearest to 1 / 127 instead of a division.
        """
        own = slice(rows[0], rows[-1] + 1)
        return self.codes.dense()[own] * _finite(self.scales, own)[:, None] * (1 / 127)


def claims(folder: Path) -> bool:
    """See WeightFormat: a folder whose config.json names the method."""
    return quantization_method(folder) == METHOD


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat; of the tensors it reads only quant_state and weight_format.

    Raises ModelError as the format safetensors does, and for a quantized weight whose tensors do not fit.
    """
    tensors = by_name(safetensors.stored_weights(folder, architecture))
    quantized: dict[str, BitsandbytesWeight] = {}
    parts: set[str] = set()
    for name, stored in tensors.items():
        kind = next((each for each in KINDS if name + STATE + each in tensors), None)
        module = name.removesuffix("weight")
        if kind is not None:
            quantized[name] = _four_bit_weight(name, kind, tensors)
            parts.update(name + end for end in (*FOUR_BIT_PARTS, STATE + kind))
        elif stored.dtype == "I8" and module != name and module + INT8_PARTS[0] in tensors:
            quantized[name] = _int8_weight(module, tensors)
            parts.update(module + part for part in INT8_PARTS)
    for name, stored in tensors.items():
        if name not in parts:
            yield name, quantized.get(name, stored)


def _four_bit_weight(name: str, kind: str, tensors: Mapping[str, StoredWeight]) -> BitsandbytesWeight:
    """Return the weight of this canonical name. Raises ModelError."""
    packed = tensors[name]
    is_nested = f"{name}.nested_absmax" in tensors
    state = _quant_state(_part(tensors, packed, name + STATE + kind, "U8"), kind, is_nested=is_nested)
    num_bytes = -(-state.num_numbers // 2)
    if math.prod(packed.shape) * PACKED_BYTES.get(packed.dtype, 0) != num_bytes or packed.shape[1:] != (1,):
        raise damaged(
            packed, f"has dtype {packed.dtype} and shape {packed.shape}; its quant_state names a weight of shape "
            f"{state.shape}, which has shape ({num_bytes}, 1) in U8",
        )  # fmt: skip
    nested: tuple[StoredWeight | None, StoredWeight | None] = None, None
    if state.nested_block_size is not None:
        num_nested = -(-state.num_blocks // state.nested_block_size)
        nested = (
            _part(tensors, packed, f"{name}.nested_absmax", "F32", num_nested),
            _part(tensors, packed, f"{name}.nested_quant_map", "F32", 256),
        )
    absmax = _part(tensors, packed, f"{name}.absmax", "U8" if is_nested else "F32", state.num_blocks)
    quant_map = _part(tensors, packed, f"{name}.quant_map", "F32", 16)
    return BitsandbytesWeight(packed, state.shape, kind, FourBitNumbers(state, packed, absmax, quant_map, *nested).read)


def _int8_weight(module: str, tensors: Mapping[str, StoredWeight]) -> BitsandbytesWeight:
    """Return the weight of the module whose canonical name, with a dot behind it, is given. Raises ModelError."""
    codes, layout = tensors[f"{module}weight"], tensors.get(f"{module}weight_format")
    if len(codes.shape) != 2:
        raise damaged(codes, f"has shape {codes.shape}; a weight of int8 has two axes")
    scales = _part(tensors, codes, f"{module}SCB", "F32", codes.shape[0])
    if layout is not None and (layout.dtype != "U8" or layout.dense().tolist() not in (0, [0])):
        raise damaged(layout, "names another order of the numbers than by rows, which is 0")
    return BitsandbytesWeight(codes, codes.shape, "int8 (bitsandbytes)", Int8Numbers(codes, scales).read)


def _quant_state(stored: StoredWeight, kind: str, *, is_nested: bool) -> QuantState:
    """Parse the JSON in a uint8 tensor. Raises ModelError."""
    try:
        fields = json.loads(stored.dense().numpy().tobytes())
        rows, columns = (_positive_integer(size) for size in fields["shape"])
        block_size, nested_block_size, offset = _positive_integer(fields["blocksize"]), None, 0.0
        if fields["quant_type"] != kind or block_size % 2:
            raise ValueError(f"quant_type {fields['quant_type']!r}, blocksize {block_size}")
        if is_nested:
            nested_block_size, offset = _positive_integer(fields["nested_blocksize"]), float(fields["nested_offset"])
            if fields["nested_dtype"] != "float32" or not math.isfinite(offset):
                raise ValueError(f"nested_dtype {fields['nested_dtype']!r}, nested_offset {offset}")
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise damaged(stored, f"is not the JSON of a weight in {kind}: {error!r}") from error
    return QuantState((rows, columns), block_size, nested_block_size, offset)


def _positive_integer(value: object) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"{value!r} is not a positive integer")
    return value


def _part(
    tensors: Mapping[str, StoredWeight], weight: StoredWeight, name: str, dtype: str, size: int | None = None
) -> StoredWeight:  # fmt: skip
    """Return a further tensor of a weight by its canonical name; raises ModelError if it is missing or does not fit."""
    if (stored := tensors.get(name)) is None:
        raise damaged(weight, f"is quantized, but the checkpoint does not have tensor {name}")
    if stored.dtype != dtype or (len(stored.shape) != 1 if size is None else stored.shape != (size,)):
        needed = f"shape ({size},)" if size is not None else "one axis"
        raise damaged(stored, f"has dtype {stored.dtype} and shape {stored.shape}; it must have {dtype} and {needed}")
    return stored


def _finite(stored: StoredWeight, own: slice = slice(None)) -> Tensor:
    """Return some of the numbers of a tensor. Raises ModelError if one is infinite or NaN."""
    numbers = stored.dense()[own]
    if not numbers.isfinite().all():
        raise damaged(stored, "has a number that is infinite or not a number; the file is damaged")
    return numbers
