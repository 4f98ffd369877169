"""StoredWeight, WeightFile: a parameter as a checkpoint stores it, and a file of parameters, in any format."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.shard import Part


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file with weights.

    Attributes:
        path: the file.
        header: names, types and shapes of its tensors, in the form of the format.
        spans: first byte of each tensor in the file, and the byte behind its last.
    """

    path: Path
    header: bytes
    spans: tuple[tuple[int, int], ...]


class StoredWeight(Protocol):
    """A parameter in a file."""

    @property
    def file(self) -> Path:
        """The file, for messages."""
        ...

    @property
    def name(self) -> str:
        """Its name in the file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape as a parameter: [O, I] for a weight that is multiplied with."""
        ...

    @property
    def dtype(self) -> str:
        """How its numbers are stored, in the words of the format."""
        ...

    @property
    def dense_dtype(self) -> str | None:
        """The dtype of dense(), one of DTYPES; None if the numbers cannot be read."""
        ...

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the numbers, or a part of them, in dense_dtype, in which nothing is rounded.

        Where numbers must be computed, they are in `dtype` if it is given: so little memory is needed for more exact
        ones. Others may be mapped from the file. Every backend can multiply with them, and tests compare with them.
        Raises OSError, and ModelError for numbers that are damaged.
        """
        ...

    @property
    def codes_type(self) -> str | None:
        """ggml's type of whose blocks codes() returns rows; None if there is only dense()."""
        ...

    def codes(self) -> BlockRows:
        """Return the numbers of dense() in the rows of blocks that kernels take; may be mapped from the file.

        Scales that are not of the type's dtype are rounded to it, within the limits of formats/integer_blocks.py. They
        are not checked: kernels count those that are damaged. Raises OSError and ModelError.
        """
        ...


class DenseOnly:
    """The methods of a StoredWeight without codes."""

    __slots__ = ()

    @property
    def codes_type(self) -> None:
        """See StoredWeight."""
        return None

    def codes(self) -> BlockRows:
        """See StoredWeight."""
        raise AssertionError("a weight without codes")


class PartOfWeight:
    """The attributes of a StoredWeight that is a part of another one, which are those of the whole."""

    __slots__ = ()

    whole: StoredWeight

    @property
    def file(self) -> Path:
        """See StoredWeight."""
        return self.whole.file

    @property
    def name(self) -> str:
        """See StoredWeight."""
        return self.whole.name

    @property
    def dtype(self) -> str:
        """See StoredWeight."""
        return self.whole.dtype

    @property
    def dense_dtype(self) -> str | None:
        """See StoredWeight."""
        return self.whole.dense_dtype


def damaged(stored: StoredWeight, problem: str) -> ModelError:
    """Return the error for a tensor that cannot be read; it names the tensor and its file."""
    return ModelError(f"tensor {stored.name} in {stored.file} {problem}", file=str(stored.file), tensor=stored.name)


def by_name(weights: Iterable[tuple[str, StoredWeight]]) -> dict[str, StoredWeight]:
    """Return weights by canonical name. Raises ModelError for two of one name."""
    found: dict[str, StoredWeight] = {}
    for name, stored in weights:
        if name in found:
            raise stored_twice(name, found[name], stored)
        found[name] = stored
    return found


def stored_twice(name: str, one: StoredWeight, other: StoredWeight) -> ModelError:
    """Return the error for two tensors of one canonical name."""
    places = f"{one.file.name} ({one.name}) and {other.file.name} ({other.name})"
    return ModelError(f"tensor {name} is stored twice: in {places}")
