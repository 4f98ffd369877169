"""GroupedWeight: a weight as integer codes with a scale and a zero for each group of inputs, packed in int32 words.

The number at output o and input i is (codes[o, i] - zeros[o, g]) * scales[o, g], where g is the group of input i. A
code minus a zero is an integer of at most 9 bits, so its product with a scale of 16 bits is exact in float32.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.formats.integer_blocks import IntegerGroups
from chairlift.model.weights.formats.tensors_by_module import ModuleTensors
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import StoredWeight, damaged

WHOLE_INPUT = -1
"""The group_size of one group for all inputs."""

SCALE_DTYPES = ("F16", "BF16", "F32")


class GroupLayout(Protocol):
    """How a format packs the codes of a module with O outputs, I inputs and G groups."""

    @property
    def bits(self) -> int:
        """Bits of a code: 2, 3, 4 or 8."""
        ...

    def codes(self, rows: range) -> Tensor:
        """Return the codes of some outputs, uint8 [n, I]."""
        ...

    def zeros(self) -> Tensor:
        """Return the codes of zero, an integer dtype, [O, G]."""
        ...

    def groups(self) -> Tensor:
        """Return the group of each input, int64 [I]. Raises ModelError for a group that does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A StoredWeight (stored_weight.py) in several tensors; has codes if blocks of ggml have the same numbers.

    Attributes:
        qweight: the packed codes, for messages.
        scales: float16, bfloat16 or float32 [G, O].
        shape: (O, I).
        dtype: method and bits, such as "AWQ 4-bit".
        layout: reads the codes.
    """

    qweight: StoredWeight
    scales: StoredWeight
    shape: tuple[int, ...]
    dtype: str
    layout: GroupLayout

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.qweight.file

    @property
    def name(self) -> str:
        """See StoredWeight."""
        return self.qweight.name

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight."""
        return "float32"

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight; raises ModelError for a scale that is infinite or NaN and for a wrong group."""
        groups = self._groups()

        def read(rows: range) -> Tensor:
            own = slice(rows.start, rows.stop)
            numbers, zeros, scales = self.layout.codes(rows).float(), groups.zeros[own], groups.scales[own]
            return numbers.sub_(zeros.index_select(1, groups.groups)).mul_(scales.index_select(1, groups.groups))

        return dense_rows(self.shape, part, dtype or torch.float32, read)

    @property
    def codes_type(self) -> str | None:
        """See StoredWeight. Raises as dense()."""
        kind = self._groups().type
        return None if kind is None else kind.name

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        return self._groups().block_rows(self.layout.codes)

    def _groups(self) -> IntegerGroups:
        scales = self.scales.dense().float()
        if not torch.isfinite(scales).all():
            raise damaged(self.scales, "has a scale that is infinite or not a number")
        zeros, groups = self.layout.zeros().float(), self.layout.groups()
        return IntegerGroups(self.layout.bits, scales.t().contiguous(), zeros.contiguous(), groups)


def group_size_of(entry: Mapping[str, Any], source: str, *names: str) -> int:
    """Return the group size of an entry, by the first of the names that it has.

    Raises ModelError unless it is positive or WHOLE_INPUT.
    """
    size = next((entry[name] for name in names if entry.get(name) is not None), None)
    if isinstance(size, bool) or not isinstance(size, int) or (size <= 0 and size != WHOLE_INPUT):
        raise ModelError(f"{names[0]} of {source} must be a positive integer or {WHOLE_INPUT}, got {size!r}")
    return size


def num_groups(inputs: int, group_size: int) -> int:
    """Return the number of groups of a row; the last may be shorter."""
    return 1 if group_size == WHOLE_INPUT else -(-inputs // group_size)


def consecutive_groups(inputs: int, group_size: int) -> Tensor:
    """Return the group of each input where groups are consecutive inputs, int64 [inputs]."""
    return torch.arange(inputs) // (inputs if group_size == WHOLE_INPUT else group_size)


def require_tensor(tensors: ModuleTensors, kind: str) -> StoredWeight:
    """Return a tensor of a module. Raises ModelError that names the missing tensor and the file."""
    if (found := tensors.get(kind)) is not None:
        return found
    beside = tensors["qweight"]
    missing = beside.name.removesuffix("qweight") + kind
    message = f"tensor {missing} is missing, but {beside.file} has {beside.name}"
    raise ModelError(message, file=str(beside.file), tensor=missing)


def check_tensor(tensor: StoredWeight, dtypes: Collection[str], shape: tuple[int, ...]) -> None:
    """Raise ModelError, with the tensor's name and file, for another dtype or shape."""
    if tensor.dtype not in dtypes:
        raise damaged(tensor, f"has dtype {tensor.dtype}, required is {' or '.join(dtypes)}")
    if tensor.shape != shape:
        raise damaged(tensor, f"has shape {tensor.shape}, the weight's other tensors require {shape}")


def packed_shape(qweight: StoredWeight) -> tuple[int, int]:
    """Return the shape of packed codes. Raises ModelError unless they are int32 with two axes that have elements."""
    if len(qweight.shape) != 2 or 0 in qweight.shape:
        raise damaged(qweight, f"has shape {qweight.shape}, required are two axes that are not empty")
    check_tensor(qweight, ("I32",), qweight.shape)
    return qweight.shape[0], qweight.shape[1]
