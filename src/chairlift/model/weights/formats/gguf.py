"""The format GGUF: one file or several, whose tensors may each have another type; config/gguf_file.py reads headers.

Rows of queries and keys are returned in the order of transformers, and norms without the 1 that files of Gemma have
added. Types with scales are dequantized some rows at a time.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_architectures import gguf_architecture
from chairlift.model.config.gguf_expert_names import canonical_expert_names
from chairlift.model.config.gguf_file import GGUFFile, GGUFTensor, read_gguf, split_paths
from chairlift.model.config.gguf_folder import gguf_file_of
from chairlift.model.config.gguf_tensor_names import canonical_tensor_names, norm_offset, row_order
from chairlift.model.config.model_folder import read_json
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.gguf_blocks import check_scales, dequantize, is_quantized
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import StoredWeight, WeightFile, damaged

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types without scales."""


@dataclass(frozen=True, slots=True)
class GGUFWeight:
    """A StoredWeight (stored_weight.py) whose dtype is the name of ggml's type.

    Attributes:
        tensor: where it is.
        order: rows of the file in the order of the parameter; None for the same order.
        subtracted: a number that the file has added to all numbers.
        data: the bytes of its file.
    """

    tensor: GGUFTensor
    order: Sequence[int] | None
    subtracted: float
    data: "MappedFile"

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.tensor.file

    @property
    def name(self) -> str:
        """See StoredWeight."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """See StoredWeight."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """See StoredWeight."""
        return self.tensor.type.name

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight: float32 for types with scales, whose numbers it has exactly enough."""
        return str(FLOATS.get(self.dtype, torch.float32)).removeprefix("torch.")

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; raises ModelError for a scale that is infinite or NaN."""
        known = FLOATS.get(self.dtype)
        if known is not None and self.order is None and not self.subtracted:
            numbers = torch.from_numpy(self._stored()).view(known).view(self.shape)  # mapped, as long as it is used
            return (numbers if part is None else numbers[part]).to(dtype or known)
        return dense_rows(self.shape, part, dtype or known or torch.float32, self._read)

    @property
    def codes_type(self) -> str | None:
        """See StoredWeight: the type of the file."""
        is_matrix = len(self.shape) == 2 and not self.subtracted
        return self.dtype if is_matrix and is_quantized(self.tensor.type) else None

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        order = None if self.order is None else np.array(self.order, np.int32)
        return BlockRows(self.tensor.type, self._stored(), order)

    def _stored(self) -> NDArray[np.uint8]:
        """Return the rows of the file, uint8 [rows, bytes of a row]."""
        stored = self.data.array()[self.tensor.offset : self.tensor.offset + self.tensor.num_bytes]
        return stored.reshape(-1, self.tensor.type.row_bytes(self.shape[-1]))

    def _read(self, rows: range) -> Tensor:
        """Return some rows, float32 or as they are stored; of a vector, which is one row of the file, some numbers."""
        tensor, kind, chosen = self.tensor, self.tensor.type, rows if self.order is None else self._ordered(rows)
        whole = self._stored()
        stored = whole if len(self.shape) == 1 else whole[list(chosen)]
        if (known := FLOATS.get(kind.name)) is not None:
            numbers = torch.from_numpy(stored).view(known)
        else:
            check_scales(stored, tensor)
            numbers = torch.from_numpy(dequantize(stored, kind))
        if len(self.shape) == 1:
            numbers = numbers.view(-1)[list(chosen)]
        return numbers.float() - self.subtracted if self.subtracted else numbers

    def _ordered(self, rows: range) -> list[int]:
        assert self.order is not None
        return [self.order[row] for row in rows]


def expert_weights(weight: GGUFWeight, num_experts: int) -> dict[str, GGUFWeight] | None:
    """Return what a tensor of experts has, by canonical name; None for another tensor.

    Of stacked experts [E, O, I] each has a matrix [O, I] with codes of its own. Raises ModelError for another number
    of experts.
    """
    tensor = weight.tensor
    names = canonical_expert_names(tensor.name, num_experts)
    if names is None:
        return None
    if len(names) == 1:
        # The gate of a shared expert is a vector in the file and a matrix of one row in the model.
        shape = (1, *tensor.shape) if "shared_expert_gate" in names[0] and len(tensor.shape) == 1 else tensor.shape
        return {names[0]: replace(weight, tensor=replace(tensor, shape=shape))}
    count, *own = tensor.shape
    parts = len(names) // num_experts
    if count != num_experts or own[0] % parts:
        raise damaged(weight, f"has shape {tensor.shape}, {num_experts} experts were expected")
    shape, size = (own[0] // parts, *own[1:]), tensor.num_bytes // len(names)
    return {
        name: replace(weight, tensor=replace(tensor, shape=shape, offset=tensor.offset + index * size, num_bytes=size))
        for index, name in enumerate(names)
    }


class MappedFile:
    """The bytes of a file, mapped when they are first read; the weights in it keep it alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mapped: NDArray[np.uint8] | None = None

    def array(self) -> NDArray[np.uint8]:
        """Return uint8 [bytes]. Raises ModelError."""
        if self._mapped is None:
            try:
                with self._path.open("rb") as file:
                    self._mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            except (OSError, ValueError) as error:
                raise ModelError(f"cannot read {self._path}: {error}", file=str(self._path)) from error
        return self._mapped


def claims(folder: Path) -> bool:
    """See WeightFormat: a folder that gguf_folder made."""
    return gguf_file_of(folder) is not None


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat. Raises as read_gguf, and for a tensor that the architecture does not have."""
    gguf, fields, mapped = _read(folder), read_json(folder / "config.json"), cache(MappedFile)
    heads, kv_heads = int(fields["num_attention_heads"]), int(fields["num_key_value_heads"])
    entry = gguf_architecture(gguf.metadata, str(gguf.path))
    for name, stored in canonical_tensor_names(gguf.tensors, entry, str(gguf.path)).items():
        tensor = gguf.tensors[stored]
        order = row_order(name, entry, tensor.shape[0], heads, kv_heads)
        yield name, GGUFWeight(tensor, order, norm_offset(name, entry), mapped(tensor.file))


def stored_files(folder: Path) -> Iterator[WeightFile]:
    """See WeightFormat; the header has names, types and shapes, and not the tokenizer."""
    gguf = _read(folder)
    for path in dict.fromkeys(tensor.file for tensor in gguf.tensors.values()):
        own = [tensor for tensor in gguf.tensors.values() if tensor.file == path]
        lines = (f"{tensor.name} {tensor.type.name} {tensor.shape}\n" for tensor in own)
        spans = tuple((tensor.offset, tensor.offset + tensor.num_bytes) for tensor in own)
        yield WeightFile(path, "".join(lines).encode(), spans)


def _read(folder: Path) -> GGUFFile:
    file = gguf_file_of(folder)
    assert file is not None, f"{folder} is not of a GGUF file"
    stats = [path.stat() for path in split_paths(file) if path.is_file()]
    return _read_unchanged(file, tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=1)
def _read_unchanged(file: Path, stats: tuple[tuple[int, int, int], ...]) -> GGUFFile:
    """Return what read_gguf does, without lists: the tokenizer is in the folder. A start asks for it several times."""
    gguf = read_gguf(file)
    return replace(gguf, metadata={key: value for key, value in gguf.metadata.items() if not isinstance(value, list)})
