"""The format GGUF: one file or several, whose tensors may each have another type; config/gguf_file.py reads headers.

Rows of queries and keys are returned in the order of transformers, and norms without the 1 that files of Gemma have
added. Types with scales are dequantized some rows at a time.
"""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.gguf_architectures import gguf_architecture
from chairlift.model.config.gguf_expert_names import canonical_expert_names
from chairlift.model.config.gguf_file import GGUFFile, GGUFTensor, read_gguf, split_paths
from chairlift.model.config.gguf_folder import gguf_file_of
from chairlift.model.config.gguf_tensor_names import (
    canonical_shape,
    canonical_tensor_names,
    names_in_layers,
    norm_offset,
    row_order,
)
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
        columns: the same for columns.
        is_decay: whether the file has -exp of the numbers, as of the rates of a recurrence.
    """

    tensor: GGUFTensor
    order: Sequence[int] | None
    subtracted: float
    data: "MappedFile"
    columns: Sequence[int] | None = None
    is_decay: bool = False

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
        if known is not None and not self._is_changed():
            numbers = torch.from_numpy(self._stored()).view(known).view(self.shape)  # mapped, as long as it is used
            return (numbers if part is None else numbers[part]).to(dtype or known)
        return dense_rows(self.shape, part, dtype or known or torch.float32, self._read)

    def _is_changed(self) -> bool:
        """Return whether the file has other numbers than the parameter, or has them in another order."""
        has_order = self.order is not None or self.columns is not None
        return has_order or self.subtracted != 0 or self.is_decay

    @property
    def codes_type(self) -> str | None:
        """See StoredWeight: the type of the file."""
        is_matrix = len(self.shape) == 2 and not self.subtracted and not self.is_decay
        has_codes = is_matrix and is_quantized(self.tensor.type)
        return self.dtype if has_codes and (self.columns is None or self._block_order() is not None) else None

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        order = None if self.order is None else np.array(self.order, np.int32)
        rows = self._stored()
        if (blocks := self._block_order()) is not None:
            by_block = rows.reshape(len(rows), -1, self.tensor.type.block_bytes)
            rows = by_block[:, blocks].reshape(rows.shape)
        return BlockRows(self.tensor.type, rows, order)

    def _block_order(self) -> list[int] | None:
        """Return the blocks of a row in the order of the parameter; None if blocks cannot be ordered as a whole."""
        size = self.tensor.type.block_size
        if self.columns is None:
            return None
        runs = [self.columns[start : start + size] for start in range(0, len(self.columns), size)]
        is_whole = all(run[0] % size == 0 and list(run) == list(range(run[0], run[0] + size)) for run in runs)
        return [run[0] // size for run in runs] if is_whole else None

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
        numbers = numbers.view(len(rows), *self.shape[1:])
        if self.columns is not None:
            numbers = numbers[:, list(self.columns)]
        if self.is_decay:
            return self._logarithms(numbers.double())
        return numbers.double() - self.subtracted if self.subtracted else numbers

    def _logarithms(self, rates: Tensor) -> Tensor:
        """Return the logarithms of what decays are the negatives of. Raises ModelError."""
        if not bool((rates < 0).all()) or not bool(rates.isfinite().all()):
            raise damaged(self, "must have finite numbers below 0")
        return (-rates).log()

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
    """See WeightFormat. Raises as read_gguf, and for a tensor that the architecture does not have.

    Tensors of the blocks that predict tokens after the next one are left out.
    """
    gguf, fields, mapped = _read(folder), read_json(folder / "config.json"), cache(MappedFile)
    entry = gguf_architecture(gguf.metadata, str(gguf.path))
    num_experts = int(fields.get(entry.expert_count_field) or 0)
    parameters = []
    for stored in names_in_layers(gguf.tensors, int(fields["num_hidden_layers"])):
        whole = GGUFWeight(gguf.tensors[stored], None, 0.0, mapped(gguf.tensors[stored].file))
        experts = expert_weights(whole, num_experts) if num_experts else None
        if experts is None:
            parameters.append(stored)
        else:
            yield from experts.items()
    for name, stored in canonical_tensor_names(parameters, entry, str(gguf.path)).items():
        tensor = replace(gguf.tensors[stored], shape=canonical_shape(name, gguf.tensors[stored].shape))
        yield name, _parameter(name, tensor, entry, fields, mapped(tensor.file))


def _parameter(
    name: str, tensor: GGUFTensor, entry: GGUFArchitecture, fields: Mapping[str, Any], data: "MappedFile"
) -> GGUFWeight:
    """Return the parameter of a canonical name, whatever order and form its numbers have in the file."""
    heads, kv_heads = int(fields["num_attention_heads"]), int(fields["num_key_value_heads"])
    of_pairs, order = row_order(name, entry, tensor.shape[0], heads, kv_heads), entry.order(fields, name)
    for places, size in ((order.rows, tensor.shape[0]), (order.columns, tensor.shape[-1])):
        if places is not None and len(places) != size:
            raise ModelError(
                f"tensor {tensor.name} in {tensor.file} has shape {tensor.shape}, config.json requires {len(places)}",
                file=str(tensor.file), tensor=tensor.name,
            )  # fmt: skip
    return GGUFWeight(
        tensor, of_pairs if order.rows is None else order.rows, norm_offset(name, entry), data, order.columns,
        is_decay=name.endswith(".A_log"),
    )  # fmt: skip


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
