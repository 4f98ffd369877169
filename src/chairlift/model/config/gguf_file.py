"""read_gguf: the metadata and the tensor descriptions of a GGUF file or of its split files. Imports no torch.

    "GGUF", u32 version, u64 tensors, u64 pairs
    pairs     string key, value
    tensors   string name, u32 dimensions, u64 each (innermost first), u32 type, u64 offset in the data
    padding to general.alignment, then the data; each tensor begins at a multiple of the alignment

A model may be split into NAME-00001-of-00003.gguf and so on. The first file has the metadata, every file has its own
tensors and `split.no` (from 0), `split.count` and `split.tensors.count` (of all files).
"""

import itertools
import math
import mmap
import re
from dataclasses import dataclass, replace
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_cursor import GGUFCursor, MetadataValue, shown_name
from chairlift.model.config.gguf_types import GGML_TYPES, UNSUPPORTED_TYPE_REMEDY, UNSUPPORTED_TYPES, GGMLType
from chairlift.model.config.model_folder import unsupported_model

GGUF_MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
"""Bytes, for a file without general.alignment."""
MAX_DIMENSIONS = 4

MIN_PAIR_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
"""Bytes of the shortest description of a tensor: an empty name, one dimension."""

SPLIT_NAME = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

OTHER_FILES = {
    "clip": "is the vision part of a model", "mmproj": "is the vision part of a model",
    "imatrix": "is calibration data for quantization, not a model", "adapter": "is a LoRA adapter, not a model",
}  # fmt: skip
"""general.architecture or general.type of a file that is not a model -> what the file is."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor is.

    Attributes:
        name: its name in the file, such as blk.0.attn_q.weight.
        shape: outermost dimension first; the last is a multiple of the type's block_size.
        offset: first byte in `file`.
        num_bytes: bytes of all rows.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    file: Path
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A model's metadata and tensors.

    Attributes:
        path: the file, the first one of split files.
        metadata: values by key; of split files those of the first.
        tensors: tensors of all files by name, in the order of the files.
    """

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GGUFTensor]


def is_gguf(path: Path) -> bool:
    """Return whether a path is a readable file that begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file, and those of the files that belong to it if the model is split.

    Args:
        path: the file, or any one of split files.

    Raises ModelError, with the file's name and the reason, for a file that is missing, truncated or invalid or lacks a
    split file; UnsupportedModel for a version, byte order or type of tensors that is not supported and for a file that
    is not a model.
    """
    paths = split_paths(path)
    first = _read_part(paths[0], is_first=True)
    count = first.metadata.get("split.count", 1)
    if paths[0] == path and count in (0, 1):
        return first
    if count != len(paths):
        message = f"{first.path} is one of {_shown(count)} split files, its name says {len(paths)}"
        remedy = "give the files their names back, which end in -00001-of-00003.gguf for the first of three"
        raise ModelError(f"{message}; {remedy}", file=str(first.path))
    return _merge(first, paths)


def split_paths(path: Path) -> list[Path]:
    """Return the paths of all split files, in their order, for the path of one; [path] if its name is not of one."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [path]
    name, count = match["name"], int(match["count"])
    return [path.with_name(f"{name}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def _merge(first: GGUFFile, paths: list[Path]) -> GGUFFile:
    """Return the first of split files with the tensors of all. Raises ModelError where one does not belong to them."""
    count = len(paths)
    for path in paths:
        if not path.is_file():
            raise ModelError(f"there is no file {path}, one of the model's {count} split files", file=str(path))
    tensors: dict[str, GGUFTensor] = {}
    for number, path in enumerate(paths):
        part = _read_part(path, is_first=False) if number else first
        place = part.metadata.get("split.no"), part.metadata.get("split.count")
        if place != (number, count):
            message = f"{path} has split.no {_shown(place[0])} and split.count {_shown(place[1])}"
            raise ModelError(f"{message}, expected {number} and {count}", file=str(path))
        for tensor in part.tensors.values():
            if tensor.name in tensors:
                message = f"tensor {shown_name(tensor.name)} is in two files: {tensors[tensor.name].file} and {path}"
                raise ModelError(message, file=str(path), tensor=tensor.name)
            tensors[tensor.name] = tensor
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        message = f"{first.path} announces {_shown(expected)} tensors in {count} files"
        raise ModelError(f"{message}, they have {len(tensors)}", file=str(first.path))
    return GGUFFile(first.path, first.metadata, tensors)


def _shown(value: MetadataValue | None) -> str:
    """Return a value that should be a number for an error message."""
    return "a list" if isinstance(value, list) else shown_name(str(value))


def _read_part(path: Path, *, is_first: bool) -> GGUFFile:
    """Read the header of one file; only the first of split files must say that it is a model."""
    try:
        with path.open("rb") as opened:
            if opened.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise ModelError(f"{path} is not a GGUF file: it does not begin with the bytes GGUF", file=str(path))
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_header(GGUFCursor(path, data), is_first=is_first)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", file=str(path)) from error


def _read_header(cursor: GGUFCursor, *, is_first: bool) -> GGUFFile:
    cursor.offset = len(GGUF_MAGIC)
    _check_version(cursor.file, cursor.u32())
    num_tensors, num_pairs = cursor.u64(), cursor.u64()
    cursor.check_count(num_tensors, MIN_TENSOR_BYTES, "tensors")
    cursor.check_count(num_pairs, MIN_PAIR_BYTES, "pairs of metadata")
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_pairs):
        cursor.place = f"key {index} of the metadata"
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"the metadata has two keys {shown_name(key)}")
        cursor.place = f"the value of {shown_name(key)}"
        metadata[key] = cursor.value()
    if is_first:
        _check_kind(cursor, metadata)
    alignment = _alignment(cursor, metadata)
    tensors: dict[str, GGUFTensor] = {}
    for index in range(num_tensors):
        cursor.place = f"the description of tensor {index}"
        tensor = _read_tensor(cursor, alignment)
        if tensor.name in tensors:
            raise cursor.error(f"it has two tensors {shown_name(tensor.name)}")
        tensors[tensor.name] = tensor
    begin = -(-cursor.offset // alignment) * alignment
    return GGUFFile(cursor.file, metadata, _place_tensors(cursor, tensors, begin))


def _check_version(file: Path, version: int) -> None:
    if version in VERSIONS:
        return
    if version and version % (1 << 16) == 0:  # a small number with its bytes swapped
        problem, remedy = "a big-endian GGUF file", "take the model's little-endian file"
    elif version == 1:
        problem, remedy = "a GGUF file of version 1", "convert the model again with a current llama.cpp"
    else:
        problem, remedy = f"a GGUF file of version {version}", "take the model's file of version 3"
    raise unsupported_model(f"{file} is {problem}, which is not supported", remedy)


def _check_kind(cursor: GGUFCursor, metadata: dict[str, MetadataValue]) -> None:
    """Raise UnsupportedModel for a file that is not a model, and ModelError for one without an architecture."""
    for key in ("general.type", "general.architecture"):
        kind = metadata.get(key)
        if isinstance(kind, str) and kind in OTHER_FILES:
            raise unsupported_model(f"{cursor.file} {OTHER_FILES[kind]}", "name the file of the model itself")
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise cursor.error("the metadata has no name of an architecture in general.architecture")


def _alignment(cursor: GGUFCursor, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {_shown(alignment)}, not a power of two that is a multiple of 8")
    return alignment


def _read_tensor(cursor: GGUFCursor, alignment: int) -> GGUFTensor:
    """Read the description of a tensor; its offset is still that in the data."""
    name = cursor.string()
    cursor.place = f"tensor {shown_name(name)}"
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{cursor.place} has {num_dimensions} dimensions, valid are 1 to {MAX_DIMENSIONS}")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))
    type_id, offset = cursor.u32(), cursor.u64()
    if type_id in UNSUPPORTED_TYPES:
        problem = f"{cursor.place} in {cursor.file} has type {UNSUPPORTED_TYPES[type_id]}, which is not supported"
        raise unsupported_model(problem, UNSUPPORTED_TYPE_REMEDY)
    if type_id not in GGML_TYPES:
        problem = f"{cursor.place} in {cursor.file} has type {type_id}, which this version of Chairlift does not know"
        raise unsupported_model(problem, UNSUPPORTED_TYPE_REMEDY)
    kind = GGML_TYPES[type_id]
    if 0 in shape:
        raise cursor.error(f"{cursor.place} has shape {shape}, whose dimensions must be positive")
    if shape[-1] % kind.block_size:
        message = f"{cursor.place} has rows of {shape[-1]} elements, not a multiple of the {kind.block_size}"
        raise cursor.error(f"{message} in a block of {kind.name}")
    if offset % alignment:
        raise cursor.error(f"{cursor.place} has offset {offset}, not a multiple of the alignment {alignment}")
    return GGUFTensor(name, shape, kind, cursor.file, offset, math.prod(shape[:-1]) * kind.row_bytes(shape[-1]))


def _place_tensors(cursor: GGUFCursor, tensors: dict[str, GGUFTensor], begin: int) -> dict[str, GGUFTensor]:
    """Return the tensors with their offsets in the file.

    Raises ModelError for one beyond the file's end and for two that overlap.
    """
    for tensor in tensors.values():
        end = begin + tensor.offset + tensor.num_bytes
        if end > cursor.size:
            raise cursor.truncated(f"tensor {shown_name(tensor.name)} goes on to byte {end}")
    for one, other in itertools.pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if one.offset + one.num_bytes > other.offset:
            raise cursor.error(f"the data of tensors {shown_name(one.name)} and {shown_name(other.name)} overlap")
    return {name: replace(tensor, offset=begin + tensor.offset) for name, tensor in tensors.items()}
