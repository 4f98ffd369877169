"""Checkpoint: loads parameters by canonical name, from a folder in any format, checked against the architecture.

Canonical names are those of transformers' causal models: model.embed_tokens.weight, model.layers.0.mlp.up_proj.weight,
lm_head.weight. Each format maps its own names to them (model/weights/formats/).

Tensors are mapped, and copied one by one into the model's parameters. The weights exist only once beside the kernel's
page cache, which the kernel can reclaim. After the model is built no file stays mapped.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.gguf_types import TYPES_BY_NAME
from chairlift.model.device.dtypes import SAFETENSORS_DTYPES
from chairlift.model.weights.arrangement import arranged
from chairlift.model.weights.formats.registry import format_of
from chairlift.model.weights.formats.safetensors import BASE_PREFIXES
from chairlift.model.weights.formats.stacked_experts import canonical_experts
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.shard import Shard
from chairlift.model.weights.stored_weight import StoredWeight, by_name
from chairlift.model.weights.unused_tensors import changes_tokens, modules_of, shown_names, unused_tensor_error

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

QUANTIZED_DTYPES = ("F8_", "F6_", "F4", "I8")
"""Beginnings of safetensors' names of dtypes that only quantized weights have; U8 is also that of old masks."""

log = logging.getLogger(__name__)


class Checkpoint:
    """The parameters in a model folder by canonical name.

    Attributes:
        tensors: stored weights by canonical name, without vision weights.
    """

    def __init__(self, tensors: dict[str, StoredWeight]) -> None:
        self.tensors = tensors

    @classmethod
    def open(cls, folder: Path, architecture: str) -> "Checkpoint":
        """Read the headers of a folder's weights.

        Raises ModelError, with the file's name, as the format does (WeightFormat), and for two tensors of one name.
        """
        return cls(by_name(format_of(folder).stored_weights(folder, architecture)))

    def arrange(self, config: DecoderConfig, names: Iterable[str]) -> None:
        """Take the parameters of these names from what the checkpoint stores (arrangement.py)."""
        stored = self.tensors
        if config.experts is not None and (experts := ARCHITECTURES[config.architecture].experts) is not None:
            stored = by_name(canonical_experts(experts, stored.items()))
        self.tensors = arranged(stored, config, names)

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
            if stored.dense_dtype is None:
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
            stored
            for name, stored in unused.items()
            if changes_tokens(name, modules, is_base_model=is_base_model) and not self._is_zero_bias(name)
        ]
        if wrong:
            raise unused_tensor_error(str(wrong[0].file), [stored.name for stored in wrong])
        names = [stored.name for stored in unused.values()]
        log.warning(
            "%s: tensors that the architecture does not use are left out (%d): %s",
            next(iter(unused.values())).file.parent, len(names), shown_names(names),
        )  # fmt: skip

    def _is_zero_bias(self, name: str) -> bool:
        """Return whether a tensor is a bias that adds nothing; AutoGPTQ wrote one for every quantized module."""
        module, _, kind = name.rpartition(".")
        weight, bias = self.tensors.get(f"{module}.weight"), self.tensors[name]
        if kind != "bias" or weight is None or bias.shape != weight.shape[:1] or bias.dense_dtype is None:
            return False
        return not bias.dense().any()

    def check_not_quantized(self) -> None:
        """Raise ModelError for a tensor of 8 bits that no format reads, whatever config.json says."""
        for tensor in self.tensors.values():
            if tensor.dense_dtype is None and tensor.dtype.startswith(QUANTIZED_DTYPES):
                supported = ", ".join(SAFETENSORS_DTYPES)
                raise ModelError(
                    f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}; supported are {supported}",
                    file=str(tensor.file), tensor=tensor.name,
                )  # fmt: skip

    def dtype(self) -> str | None:
        """Return the dtype of the embedding table, for a config.json without a dtype; None if it is not supported."""
        table = self.tensors.get(EMBEDDING)
        return None if table is None else table.dense_dtype

    def largest_dtype(self) -> str | None:
        """Return the dtype of the largest tensor, for an architecture of unknown names; None if it is not supported."""
        largest = max(self.tensors.values(), key=lambda stored: math.prod(stored.shape), default=None)
        return None if largest is None else largest.dense_dtype

    def stored_types(self) -> str:
        """Return the share of the numbers in each type, in the words of the format: "Q4_K 83%, F32 <1%"."""
        sizes: Counter[str] = Counter()
        for stored in self.tensors.values():
            sizes[stored.dtype] += math.prod(stored.shape)
        shares = ((name, size / max(1, sizes.total())) for name, size in sizes.most_common())
        return ", ".join(f"{name} {share:.0%}" if share >= 0.005 else f"{name} <1%" for name, share in shares)

    def code_bytes(self) -> dict[str, int]:
        """Return the bytes of blocks of each tensor that has codes; reads scales where the format must look at them."""
        found = {}
        for name, stored in self.tensors.items():
            if (kind := stored.codes_type) is not None:
                found[name] = stored.shape[0] * TYPES_BY_NAME[kind].row_bytes(stored.shape[1])
        return found

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in its own dtype, mapped from its file; or, if it must be computed, in `dtype`."""
        return self.tensors[name].dense(None, dtype)

    def read_part(
        self, name: str, shard: Shard, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor:  # fmt: skip
        """Return one rank's part of a tensor, of this shape, without reading the rest of the file; dtype as in read."""
        part = shard.part(name, self.tensors[name].shape, shape)
        if any(each.start == each.stop for each in part):
            return torch.zeros(shape)
        return padded(self.tensors[name].dense(part, dtype), shape)

    def loader(self, dtype: torch.dtype, device: torch.device, shard: Shard | None = None) -> ParameterLoader:
        """Return a ParameterLoader that converts each tensor when it is loaded; with a shard, one rank's parts."""

        def read(name: str, shape: tuple[int, ...], to: torch.dtype = dtype) -> Tensor:
            stored = self.read(name, to) if shard is None else self.read_part(name, shard, shape, to)
            tensor = stored.to(device=device, dtype=to)
            assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)} against {shape}"
            return tensor

        def read_float32(name: str, shape: tuple[int, ...]) -> Tensor:
            return read(name, shape, torch.float32)

        def stored(name: str) -> StoredWeight | None:
            return self.tensors.get(name) if shard is None else None

        return ParameterLoader(read, stored=stored, read_float32=read_float32)

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
