"""Checkpoint: loads parameters by name from mapped safetensors files, checked against the architecture.

    name of a tensor in the file          canonical name
    model.layers.0...                     model.layers.0...     every architecture
    layers.0...                           model.layers.0...     a base model without a head, such as Qwen3-Embedding
    language_model.model.layers.0...      model.layers.0...     Gemma 3's wrapper as published and as saved
    model.language_model.layers.0...      model.layers.0...     Gemma 3's wrapper by its module names
    language_model.lm_head.weight         lm_head.weight
    vision_tower..., multi_modal_projector...   ignored with Gemma 3; other unused tensors: unused_tensors.py

Tensors are mapped, and copied one by one into the model's parameters. The weights exist only once beside the kernel's
page cache, which the kernel can reclaim. After the model is built no file stays mapped.
"""

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import INDEX_FILE, weight_files
from chairlift.model.device.dtypes import SAFETENSORS_DTYPES
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.shard import Shard
from chairlift.model.weights.unused_tensors import changes_tokens, modules_of, shown_names, unused_tensor_error

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

WRAPPER_PREFIXES = (
    ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."),
)  # fmt: skip
BASE_PREFIXES = ("embed_tokens.", "layers.", "norm.")
"""Beginnings of names in a checkpoint that was saved from the base model, which is called `model` in a causal one."""

IGNORED_PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
)  # fmt: skip

QUANTIZED_DTYPES = ("F8_", "F6_", "F4", "I8")
"""Beginnings of safetensors' names of dtypes that only quantized weights have; U8 is also that of old masks."""

IGNORED_BUFFER = re.compile(r"(^|.*\.)rotary_emb\.(original_)?(inv_freq|cos_cached|sin_cached)")
"""Buffers of RoPE in old checkpoints: config.json has what they are computed from."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: the file, its name in the file, its shape and safetensors' name of its dtype."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """The tensors of a model folder by canonical name.

    Attributes:
        tensors: tensors by canonical name, without vision weights.
    """

    def __init__(self, tensors: dict[str, StoredTensor]) -> None:
        self.tensors = tensors
        self._files: dict[Path, Any] = {}

    @classmethod
    def open(cls, folder: Path, architecture: str) -> "Checkpoint":
        """Read the headers of model.safetensors, or of the files that its index names.

        Raises ModelError, with the file's name, for a missing, truncated or unreadable file, one that lacks a tensor
        of the index, one with a tensor that is not a float, and for two tensors of one name.
        """
        tensors: dict[str, StoredTensor] = {}
        for file, indexed in weight_files(folder).items():
            stored = _headers(file)
            absent = [name for name in indexed if name not in stored]
            if absent:
                raise ModelError(
                    f"{file} does not have tensor {shown_names(absent, 1)}, which {INDEX_FILE} lists for this file",
                    file=str(file),
                )
            for tensor in stored.values():
                name = canonical_name(tensor.name, architecture)
                if name is None:
                    continue
                if name in tensors:
                    other = tensors[name]
                    raise ModelError(f"tensor {name} is in two files: {other.file.name} ({other.name}) and {file.name}")
                tensors[name] = tensor
        return cls(tensors)

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Check that the tensors are those of an architecture; log a warning for others that change no token.

        Raises ModelError, with the tensor's name, for a missing tensor, a shape or a dtype that does not fit, and an
        unused tensor of what the architecture computes.
        """
        missing = [name for name in expected if name not in self.tensors]
        if missing:
            raise ModelError(
                f"the checkpoint does not have tensor {shown_names(missing, 1)}", tensor=missing[0], count=len(missing)
            )
        self._check_unused(expected)
        for name, shape in expected.items():
            stored = self.tensors[name]
            if stored.shape != shape:
                message = (
                    f"tensor {stored.name} in {stored.file} has shape {stored.shape}, config.json requires {shape}"
                )
                raise ModelError(message, file=str(stored.file), tensor=stored.name)
            if stored.dtype not in SAFETENSORS_DTYPES:
                supported = ", ".join(SAFETENSORS_DTYPES)
                message = f"tensor {stored.name} in {stored.file} has dtype {stored.dtype}; supported are {supported}"
                raise ModelError(message, file=str(stored.file), tensor=stored.name)

    def _check_unused(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        unused = {name: stored for name, stored in self.tensors.items() if name not in expected}
        if not unused:
            return
        modules = modules_of(expected)
        is_base_model = self.tensors[EMBEDDING].name.startswith(BASE_PREFIXES)
        wrong = [
            stored for name, stored in unused.items() if changes_tokens(name, modules, is_base_model=is_base_model)
        ]
        if wrong:
            raise unused_tensor_error(str(wrong[0].file), [stored.name for stored in wrong])
        names = [stored.name for stored in unused.values()]
        log.warning(
            "%s: tensors that the architecture does not use are left out (%d): %s",
            next(iter(unused.values())).file.parent, len(names), shown_names(names),
        )  # fmt: skip

    def check_not_quantized(self) -> None:
        """Raise ModelError for a tensor of 8 bits, which is quantized, whatever config.json says."""
        for tensor in self.tensors.values():
            if tensor.dtype.startswith(QUANTIZED_DTYPES):
                supported = ", ".join(SAFETENSORS_DTYPES)
                raise ModelError(
                    f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}; supported are {supported}",
                    file=str(tensor.file), tensor=tensor.name,
                )  # fmt: skip

    def dtype(self) -> str | None:
        """Return the dtype of the embedding table, for a config.json without a dtype; None if it is not supported."""
        table = self.tensors.get(EMBEDDING)
        return None if table is None else SAFETENSORS_DTYPES.get(table.dtype)

    def largest_dtype(self) -> str | None:
        """Return the dtype of the largest tensor, for an architecture of unknown names; None if it is not supported."""
        largest = max(self.tensors.values(), key=lambda stored: math.prod(stored.shape), default=None)
        return None if largest is None else SAFETENSORS_DTYPES.get(largest.dtype)

    def read(self, name: str) -> Tensor:
        """Return a tensor, mapped from its file, in its own dtype."""
        tensor: Tensor = self._file(name).get_tensor(self.tensors[name].name)
        return tensor

    def read_part(self, name: str, shard: Shard, shape: tuple[int, ...]) -> Tensor:
        """Return one rank's part of a tensor, of this shape, without reading the rest of the file."""
        part = shard.part(name, self.tensors[name].shape, shape)
        if any(each.start == each.stop for each in part):
            return torch.zeros(shape)
        tensor: Tensor = self._file(name).get_slice(self.tensors[name].name)[part]
        return padded(tensor, shape)

    def _file(self, name: str) -> Any:
        file = self.tensors[name].file
        if file not in self._files:
            self._files[file] = safe_open(file, framework="pt")
        return self._files[file]

    def loader(self, dtype: torch.dtype, device: torch.device, shard: Shard | None = None) -> ParameterLoader:
        """Return a ParameterLoader that converts each tensor when it is loaded; with a shard, one rank's parts."""

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            stored = self.read(name) if shard is None else self.read_part(name, shard, shape)
            tensor = stored.to(device=device, dtype=dtype)
            assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)} against {shape}"
            return tensor

        return ParameterLoader(read)

    def resolve_tied_embeddings(self, tied: bool) -> bool:
        """Return whether embedding and lm_head are one tensor, by the rule of transformers 5.

        If the config ties them: an lm_head in the file that equals the embedding is dropped; one that differs stays
        separate; an lm_head without an embedding serves as both.
        """
        if not tied or HEAD not in self.tensors:
            return tied
        if EMBEDDING not in self.tensors:
            self.tensors[EMBEDDING] = self.tensors.pop(HEAD)
            return True
        first, second = self.tensors[EMBEDDING], self.tensors[HEAD]
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            return False
        if not torch.equal(self.read(EMBEDDING), self.read(HEAD)):
            return False
        del self.tensors[HEAD]
        return True


def padded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor, followed by zeros along each axis where it is shorter than the shape."""
    if tuple(tensor.shape) == shape:
        return tensor
    whole = tensor.new_zeros(shape)
    whole[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return whole


def canonical_name(name: str, architecture: str) -> str | None:
    """Return the canonical name of a tensor in a file; None for an ignored one."""
    if IGNORED_BUFFER.fullmatch(name):
        return None
    if architecture.startswith("Gemma3"):
        if name.startswith(IGNORED_PREFIXES):
            return None
        for prefix, canonical in WRAPPER_PREFIXES:
            if name.startswith(prefix):
                return canonical + name.removeprefix(prefix)
    return f"model.{name}" if name.startswith(BASE_PREFIXES) else name


def _headers(file: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (it is not a mapping)
            return {
                name: StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is truncated or not a safetensors file: {error}", file=str(file)) from error
