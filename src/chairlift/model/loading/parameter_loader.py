"""Take: how a family asks for its parameters, by name and shape, one by one or several joined into one tensor.

    take("model.norm.weight", (H,))                     the parameter itself
    take.rows([("q_proj.bias", (Q,)), ...])             several, one behind the other along their first axis
    take.matrix([("q_proj.weight", (Q, H)), ...])       the same, in the layout that is multiplied with
    take.table("embed_tokens.weight", (V, H), tied)     a table to look up in; where it is tied, the head as well

So names and shapes stand in one place, in the families. What a Take reads may be mapped from a file; what it hands out
never is: it is one copy of the weights, in the layout that is computed with, and the file need not stay in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from chairlift.model.kernels.cpu.packing import PackedWeight

Part = tuple[str, tuple[int, ...]]
"""Name and shape of a parameter in the checkpoint."""

Matrix = Tensor | PackedWeight
"""A weight [O, I] as whoever multiplies with it packed it."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of the parts, one behind the other along their first axis."""
    return torch.cat(tuple(parts))


def plain(matrix: Matrix) -> Tensor:
    """Return the matrix, which torch is to multiply with."""
    assert isinstance(matrix, Tensor), "packed for the native kernels, which alone can multiply with it"
    return matrix


Read = Callable[[str, tuple[int, ...]], Tensor]
"""Returns the parameter of a name, which must have this shape."""


class Pack(Protocol):
    """Brings weights into another layout."""

    def __call__(self, parts: Sequence[Part], read: Read, *, gated: bool) -> Matrix:
        """Pack weights [O_i, I] below one another; `gated`: two, the first of which gates the second, row by row."""
        ...


def unpacked(parts: Sequence[Part], read: Read, *, gated: bool) -> Tensor:
    """Return a copy of the parts below one another, in the layout of a checkpoint."""
    return joined([read(name, shape) for name, shape in parts])


@dataclass(frozen=True, slots=True)
class Take:
    """Hands out parameters in the model's dtype and on its device.

    Attributes:
        read: returns the parameter of a name, which must have this shape.
        join: makes one new tensor of several.
        pack: brings weights [O, I] into another layout; its result may be opaque to all but who multiplies with it.
        packs_tables: whether a table that is the head as well is packed, too.
    """

    read: Read
    join: Callable[[Sequence[Tensor]], Tensor] = joined
    pack: Pack = unpacked
    packs_tables: bool = False

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the parameter of a name, which must have this shape."""
        return self.join([self.read(name, shape)])

    def rows(self, parts: Sequence[Part]) -> Tensor:
        """Return several parameters, one behind the other along their first axis."""
        return self.join([self.read(name, shape) for name, shape in parts])

    def matrix(self, parts: Sequence[Part], *, gated: bool = False) -> Matrix:
        """Return several weights [O_i, I] as one to multiply with; `gated`: the first of two gates the second."""
        return self.pack(parts, self.read, gated=gated)

    def table(self, name: str, shape: tuple[int, ...], *, tied: bool) -> Matrix:
        """Return a table [V, H] to look up in, which is the head as well where the two are tied."""
        return self.matrix([(name, shape)]) if tied and self.packs_tables else self(name, shape)
