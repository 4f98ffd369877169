"""The format GPTQ, versions 1 and 2: two, three, four or eight bits, packed along the inputs.

tensors of a module with I inputs, O outputs, b bits and groups of g inputs
qweight    int32 [I * b / 32, O]         codes of one output, from the lowest bit of the first word
qzeros     int32 [I / g, O * b / 32]     codes of zero of one group, likewise; version 1 has subtracted 1
scales     float [I / g, O]
g_idx      int32 [I]                     group of each input, in any order (desc_act); absent: groups are consecutive

A symmetric module has 2^(b-1) as every zero, whichever version its zeros were written in: some tools wrote those of
version 2 under the name of version 1. Modules that are not quantized have a plain weight.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model
from chairlift.model.config.quantized_checkpoint import method_options, quantization_method
from chairlift.model.weights.formats.grouped_weight import (
    SCALE_DTYPES,
    GroupedWeight,
    check_tensor,
    consecutive_groups,
    group_size_of,
    num_groups,
    packed_shape,
    require_tensor,
)
from chairlift.model.weights.formats.packed_codes import WORD_BITS, unpacked
from chairlift.model.weights.formats.safetensors import stored_files
from chairlift.model.weights.formats.tensors_by_module import ModuleTensors, module_weights
from chairlift.model.weights.stored_weight import StoredWeight, damaged

__all__ = ["claims", "stored_files", "stored_weights"]

KINDS = ("qweight", "qzeros", "scales", "g_idx")
VERSIONS = {"gptq": 1, "gptq_v2": 2}
"""Value of checkpoint_format -> version of the zeros."""

SUPPORTED_BITS = (2, 3, 4, 8)

ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""Bits -> a word whose codes are all 1. Version 1 subtracts it from a word as a whole, so a zero of 0 borrows."""


@dataclass(frozen=True, slots=True)
class GPTQOptions:
    """How a module is quantized.

    Attributes:
        bits: of a code.
        group_size: inputs of a group, or WHOLE_INPUT.
        sym: whether the code of zero is 2^(bits-1).
        desc_act: whether inputs of a group are not consecutive, so that g_idx is needed.
    """

    bits: int
    group_size: int
    sym: bool
    desc_act: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any], source: str) -> "GPTQOptions":
        """Read the options of an entry. Raises UnsupportedModel for other bits, ModelError for a wrong group size."""
        bits = entry.get("bits")
        if isinstance(bits, bool) or bits not in SUPPORTED_BITS:
            supported = ", ".join(map(str, SUPPORTED_BITS))
            problem = f"the weights are quantized with GPTQ to {bits} bits ({source}), supported are {supported}"
            raise unsupported_model(problem, ORIGINAL)
        size = group_size_of(entry, source, "group_size")
        return cls(int(bits), size, bool(entry.get("sym", True)), bool(entry.get("desc_act", False)))


@dataclass(frozen=True, slots=True)
class GPTQLayout:
    """A GroupLayout of version 1 or 2; its other fields are the tensors and the sizes of the module."""

    version: int
    options: GPTQOptions
    qweight: StoredWeight
    qzeros: StoredWeight
    g_idx: StoredWeight | None
    inputs: int
    outputs: int

    @property
    def bits(self) -> int:
        """See GroupLayout."""
        return self.options.bits

    def codes(self, rows: range) -> Tensor:
        """See GroupLayout."""
        words = self.qweight.dense((slice(0, self.qweight.shape[0]), slice(rows.start, rows.stop)))
        return unpacked(words.t(), self.options.bits)

    def zeros(self) -> Tensor:
        """See GroupLayout."""
        words, bits = self.qzeros.dense(), self.options.bits
        stored = unpacked(words, bits)[:, : self.outputs]
        middle = 2 ** (bits - 1)
        if self.options.sym and any(bool((stored == code).all()) for code in (middle - 1, middle)):
            return torch.full_like(stored, middle).t()
        if self.version == 1:
            stored = unpacked(words + ONES[bits], bits) if bits in ONES else (stored + 1) & (2**bits - 1)
        return stored[:, : self.outputs].t()

    def groups(self) -> Tensor:
        """See GroupLayout."""
        if self.g_idx is None:
            return consecutive_groups(self.inputs, self.options.group_size)
        groups, count = self.g_idx.dense().long(), num_groups(self.inputs, self.options.group_size)
        if (wrong := groups[(groups < 0) | (groups >= count)]).numel():
            raise damaged(self.g_idx, f"has group {int(wrong[0])}, the groups are 0 to {count - 1}")
        return groups


def claims(folder: Path) -> bool:
    """See WeightFormat: a folder whose entry has the method gptq."""
    return quantization_method(folder) == "gptq"


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat. Raises UnsupportedModel for another version and other bits, ModelError for wrong shapes."""
    source, entry = method_options(folder)
    version = _version(entry, source)
    base = GPTQOptions.of(entry, source)

    def weight(tensors: ModuleTensors) -> GroupedWeight | None:
        if "qweight" not in tensors:
            return None
        module = tensors["qweight"].name.removesuffix(".qweight")
        overrides = _overrides(entry, source, module)
        options = GPTQOptions.of({**entry, **overrides}, f"dynamic of {source}") if overrides else base
        return _weight(tensors, version, options)

    yield from module_weights(folder, architecture, weight, KINDS)


def _version(entry: Mapping[str, Any], source: str) -> int:
    """Return the version of the zeros. Raises UnsupportedModel for the layouts of kernels."""
    name = str(entry.get("checkpoint_format") or entry.get("format") or "gptq")
    name = "marlin" if entry.get("is_marlin_format") else name
    if name not in VERSIONS:
        problem = (
            f"the weights are quantized with GPTQ in the layout {name} ({source}), "
            f"supported are {' and '.join(VERSIONS)}"
        )
        raise unsupported_model(problem, ORIGINAL)
    return VERSIONS[name]


def _overrides(entry: Mapping[str, Any], source: str, module: str) -> Mapping[str, Any]:
    """Return the options of the first pattern in `dynamic` that matches the beginning of a module's name in the file.

    A pattern that begins with "-:" is for modules that are not quantized. Raises ModelError for an invalid pattern.
    """
    dynamic = entry.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise ModelError(f"dynamic of {source} must be an object, got {type(dynamic).__name__}")
    for pattern, options in dynamic.items():
        try:
            matches = re.match(pattern.removeprefix("-:").removeprefix("+:"), module) is not None
        except re.error as error:
            raise ModelError(f"dynamic of {source} has an invalid pattern {pattern!r}: {error}") from error
        if matches:
            return options if isinstance(options, Mapping) and not pattern.startswith("-:") else {}
    return {}


def _weight(tensors: ModuleTensors, version: int, options: GPTQOptions) -> GroupedWeight:
    qweight, bits = tensors["qweight"], options.bits
    scales, qzeros, g_idx = require_tensor(tensors, "scales"), require_tensor(tensors, "qzeros"), tensors.get("g_idx")
    words, outputs = packed_shape(qweight)
    if words * WORD_BITS % bits or (bits == 3 and words % 3):
        raise damaged(qweight, f"has {words} rows, which do not hold whole groups of {bits}-bit codes")
    inputs = words * WORD_BITS // bits
    groups = num_groups(inputs, options.group_size)
    check_tensor(scales, SCALE_DTYPES, (groups, outputs))
    unit = 3 * WORD_BITS if bits == 3 else WORD_BITS  # bits in which codes fill words
    check_tensor(qzeros, ("I32",), (groups, -(-outputs * bits // unit) * unit // WORD_BITS))
    if g_idx is not None and g_idx.shape == (0,):
        g_idx = None
    if g_idx is not None:
        check_tensor(g_idx, ("I32", "I64"), (inputs,))
    elif options.desc_act and groups > 1:
        g_idx = require_tensor({kind: tensor for kind, tensor in tensors.items() if kind != "g_idx"}, "g_idx")
    layout = GPTQLayout(version, options, qweight, qzeros, g_idx, inputs, outputs)
    return GroupedWeight(qweight, scales, (outputs, inputs), f"GPTQ {bits}-bit", layout)
