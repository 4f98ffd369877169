"""StoredWeight: a parameter as a checkpoint stores it, in any format."""

from pathlib import Path
from typing import Protocol

from torch import Tensor

from chairlift.model.weights.shard import Part


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

    def dense(self, part: Part | None = None) -> Tensor:
        """Return the numbers in dense_dtype, or a part of them; rounded by nothing but how they are stored.

        May be mapped from the file. Every backend can multiply with them, and they are what tests compare with.
        Raises OSError, and ModelError for numbers that are damaged.
        """
        ...
