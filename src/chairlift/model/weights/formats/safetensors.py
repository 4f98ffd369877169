"""The format safetensors: one file, or several with an index; tensors are mapped.

name of a tensor in the file          canonical name
model.layers.0...                     model.layers.0...     every architecture
layers.0...                           model.layers.0...     a base model without a head, such as Qwen3-Embedding
language_model.model.layers.0...      model.layers.0...     Gemma 3's wrapper as published and as saved
model.language_model.layers.0...      model.layers.0...     Gemma 3's wrapper by its module names
language_model.lm_head.weight         lm_head.weight
vision_tower..., multi_modal_projector...   ignored with Gemma 3; other unused tensors: unused_tensors.py
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.model_folder import HEADER_LENGTH_BYTES, INDEX_FILE, weight_files
from chairlift.model.device.dtypes import SAFETENSORS_DTYPES
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly, StoredWeight, WeightFile
from chairlift.model.weights.unused_tensors import shown_names

WRAPPER_PREFIXES = (
    ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."),
)  # fmt: skip
BASE_PREFIXES = ("embed_tokens.", "layers.", "norm.")
"""Beginnings of names in a checkpoint that was saved from the base model, which is called `model` in a causal one."""

IGNORED_BUFFER = re.compile(r"(^|.*\.)rotary_emb\.(original_)?(inv_freq|cos_cached|sin_cached)")
"""Buffers of RoPE in old checkpoints: config.json has what they are computed from."""


class MappedFiles:
    """Safetensors files that are mapped when a tensor is read; their weights keep them alive."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def __getitem__(self, file: Path) -> Any:
        """Return an opened file. Raises SafetensorError or OSError."""
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file]


@dataclass(frozen=True, slots=True)
class SafetensorsWeight(DenseOnly):
    """A StoredWeight (stored_weight.py) whose dtype is safetensors' name of it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    files: MappedFiles = field(default_factory=MappedFiles, repr=False, compare=False)

    @property
    def dense_dtype(self) -> str | None:
        """See StoredWeight."""
        return SAFETENSORS_DTYPES.get(self.dtype)

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; reads no more of the file than the part."""
        opened = self.files[self.file]
        tensor: Tensor = opened.get_tensor(self.name) if part is None else opened.get_slice(self.name)[part]
        return tensor


def claims(folder: Path) -> bool:
    """See WeightFormat: a folder that has no other format, and then the error names what is missing."""
    return True


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """Read the headers of model.safetensors, or of the files that its index names; see WeightFormat.

    Raises ModelError, with the file's name, for a missing, truncated or unreadable file, and one that lacks a tensor
    of the index.
    """
    files = MappedFiles()
    for file, indexed in weight_files(folder).items():
        stored = _headers(file, files)
        absent = [name for name in indexed if name not in stored]
        if absent:
            raise ModelError(
                f"{file} does not have tensor {shown_names(absent, 1)}, which {INDEX_FILE} lists for this file",
                file=str(file),
            )
        for tensor in stored.values():
            name = canonical_name(tensor.name, architecture)
            if name is not None:
                yield name, tensor


def stored_files(folder: Path) -> Iterator[WeightFile]:
    """See WeightFormat."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            header = opened.read(int.from_bytes(opened.read(HEADER_LENGTH_BYTES), "little"))
        first = HEADER_LENGTH_BYTES + len(header)
        tensors = (entry for name, entry in json.loads(header).items() if name != "__metadata__")
        offsets = (entry["data_offsets"] for entry in tensors)
        yield WeightFile(file, header, tuple((first + start, first + end) for start, end in offsets))


def canonical_name(name: str, architecture: str) -> str | None:
    """Return the canonical name of a tensor in a file; None for an ignored one."""
    if IGNORED_BUFFER.fullmatch(name):
        return None
    known = ARCHITECTURES.get(architecture)
    if known is not None and known.ignored_prefixes:
        if name.startswith(known.ignored_prefixes):
            return None
        for prefix, canonical in WRAPPER_PREFIXES:
            if name.startswith(prefix):
                return canonical + name.removeprefix(prefix)
    return f"model.{name}" if name.startswith(BASE_PREFIXES) else name


def _headers(file: Path, files: MappedFiles) -> dict[str, SafetensorsWeight]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (it is not a mapping)
            return {
                name: SafetensorsWeight(file, name, tuple(part.get_shape()), part.get_dtype(), files)
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is truncated or not a safetensors file: {error}", file=str(file)) from error
