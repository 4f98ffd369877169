"""The format AWQ, version gemm: four bits, packed along the outputs.

tensors of a module with I inputs, O outputs and groups of g inputs
qweight    int32 [I, O / 8]        a word has eight outputs of one input
qzeros     int32 [I / g, O / 8]    absent without zero points: then 8 is the code of zero
scales     float16 [I / g, O]

Modules that are not converted have a plain weight, so modules_to_not_convert says nothing that the tensors do not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from chairlift.model.weights.formats.packed_codes import WORD_BITS
from chairlift.model.weights.formats.safetensors import stored_files
from chairlift.model.weights.formats.tensors_by_module import ModuleTensors, module_weights
from chairlift.model.weights.stored_weight import StoredWeight

__all__ = ["claims", "stored_files", "stored_weights"]

BITS, VERSION = 4, "gemm"
PER_WORD = WORD_BITS // BITS
KINDS = ("qweight", "qzeros", "scales")

NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of the eight outputs in a word its nibble, from the lowest."""

SYMMETRIC_ZERO = 8


@dataclass(frozen=True, slots=True)
class AWQLayout:
    """A GroupLayout of the version gemm; its fields are the tensors and the sizes of the module."""

    qweight: StoredWeight
    qzeros: StoredWeight | None
    inputs: int
    outputs: int
    group_size: int

    @property
    def bits(self) -> int:
        """See GroupLayout."""
        return BITS

    def codes(self, rows: range) -> Tensor:
        """See GroupLayout."""
        first, last = rows.start // PER_WORD, -(-rows.stop // PER_WORD)
        words = self.qweight.dense((slice(0, self.inputs), slice(first, last)))
        start = rows.start - first * PER_WORD
        return _outputs(words)[start : start + len(rows)]

    def zeros(self) -> Tensor:
        """See GroupLayout."""
        if self.qzeros is None:
            return torch.full((self.outputs, num_groups(self.inputs, self.group_size)), SYMMETRIC_ZERO)
        return _outputs(self.qzeros.dense())

    def groups(self) -> Tensor:
        """See GroupLayout."""
        return consecutive_groups(self.inputs, self.group_size)


def claims(folder: Path) -> bool:
    """See WeightFormat: a folder whose entry has the method awq."""
    return quantization_method(folder) == "awq"


def stored_weights(folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
    """See WeightFormat. Raises UnsupportedModel for another version and other bits, ModelError for wrong shapes."""
    source, entry = method_options(folder)
    _check_supported(entry, source)
    group_size = group_size_of(entry, source, "group_size", "q_group_size")
    has_zeros = bool(entry.get("zero_point", True))

    def weight(tensors: ModuleTensors) -> GroupedWeight | None:
        return _weight(tensors, group_size, has_zeros) if "qweight" in tensors else None

    yield from module_weights(folder, architecture, weight, KINDS)


def _check_supported(entry: Mapping[str, Any], source: str) -> None:
    version = next((entry[name] for name in ("version", "checkpoint_format", "format") if entry.get(name)), VERSION)
    if str(version).lower() != VERSION:
        problem = f"the weights are quantized with AWQ version {version} ({source}), supported is {VERSION}"
        raise unsupported_model(problem, ORIGINAL)
    bits = entry.get("bits", entry.get("w_bit", BITS))
    if bits != BITS:
        problem = f"the weights are quantized with AWQ to {bits!r} bits ({source}), supported are {BITS}"
        raise unsupported_model(problem, ORIGINAL)


def _weight(tensors: ModuleTensors, group_size: int, has_zeros: bool) -> GroupedWeight:
    qweight, scales = tensors["qweight"], require_tensor(tensors, "scales")
    qzeros = require_tensor(tensors, "qzeros") if has_zeros else tensors.get("qzeros")
    inputs, words = packed_shape(qweight)
    groups, outputs = num_groups(inputs, group_size), words * PER_WORD
    check_tensor(scales, SCALE_DTYPES, (groups, outputs))
    if qzeros is not None:
        check_tensor(qzeros, ("I32",), (groups, words))
    layout = AWQLayout(qweight, qzeros, inputs, outputs, group_size)
    return GroupedWeight(qweight, scales, (outputs, inputs), f"AWQ {BITS}-bit", layout)


def _outputs(words: Tensor) -> Tensor:
    """Return the codes in words, int32 [n, W] -> uint8 [8 W, n], in the order of the outputs."""
    by_output = words.t().contiguous()
    codes = torch.empty(len(by_output), PER_WORD, len(words), dtype=torch.uint8)
    for output, nibble in enumerate(NIBBLES):
        codes[:, output] = by_output >> BITS * nibble & 2**BITS - 1
    return codes.flatten(0, 1)
