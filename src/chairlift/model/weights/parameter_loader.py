"""ParameterLoader: loads an architecture's parameters by name and shape, single or joined into one tensor.

    loader("model.norm.weight", (H,))                           the parameter itself
    loader.float32("mlp.gate.e_score_correction_bias", (E,))    the same, not rounded to the model's dtype
    loader.concat([("q_proj.bias", (Q,)), ...])                 several, concatenated along their first axis
    loader.linear_weight([("q_proj.weight", (Q, H)), ...])      the same, in the layout for multiplication
    loader.embedding("embed_tokens.weight", (V, H), tied=...)   an embedding table; if tied, the lm_head as well

So names and shapes are defined in one place, the architecture modules. The loader may read tensors mapped from a file,
but it returns copies in the layout that is computed with, so the file need not stay in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.stored_weight import StoredWeight

Part = tuple[str, tuple[int, ...]]
"""Name and shape of a parameter in the checkpoint."""


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of the parts, concatenated along their first axis."""
    return torch.cat(tuple(parts))


Read = Callable[[str, tuple[int, ...]], Tensor]
"""Returns the parameter of a name, which must have this shape."""


Stored = Callable[[str], StoredWeight | None]
"""Returns the parameter of a name as a file stores it; None if there is none, or if only a part of it is loaded."""


class Pack(Protocol):
    """Packs weights into another layout."""

    def __call__(self, parts: Sequence[Part], loader: "ParameterLoader", *, gated: bool) -> LinearWeight:
        """Pack weights [O_i, I], stacked by rows; `gated`: two weights, the first gates the second row by row."""
        ...


def unpacked(parts: Sequence[Part], loader: "ParameterLoader", *, gated: bool) -> Tensor:
    """Return a copy of the parts stacked by rows, in the layout of a checkpoint."""
    return concatenate([loader.read(name, shape) for name, shape in parts])


PacksTable = Callable[[str, bool], bool]
"""Returns whether an embedding table is packed, by its name and whether it is also the lm_head."""


@dataclass(frozen=True, slots=True)
class ParameterLoader:
    """Loads parameters in the model's dtype and on its device.

    Attributes:
        read: returns the parameter of a name, which must have this shape.
        join: copies several tensors into a new one.
        pack: packs weights [O, I] into another layout, which only the backend that multiplies may understand.
        packs_table: whether the embedding table of a name is packed, too; `tied`: it is also the lm_head.
        stored: returns parameters as files store them.
        read_float32: as `read`, but in float32 and thus not rounded to a narrower dtype of the model; None if such
            numbers cannot be had.
    """

    read: Read
    join: Callable[[Sequence[Tensor]], Tensor] = concatenate
    pack: Pack = unpacked
    packs_table: PacksTable = lambda name, tied: False
    stored: Stored = lambda name: None
    read_float32: Read | None = None

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the parameter of a name, which must have this shape."""
        return self.join([self.read(name, shape)])

    def float32(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the parameter of a name in float32; the model computes with numbers that its dtype would round."""
        return self.join([(self.read_float32 or self.read)(name, shape).float()])

    def refuse_damaged(self, name: str, shape: tuple[int, ...]) -> NoReturn:
        """Raise the error of reading the numbers of a parameter whose codes have a scale that is infinite or NaN."""
        self.read(name, shape)
        raise AssertionError(f"{name}: damaged blocks were dequantized")

    def concat(self, parts: Sequence[Part]) -> Tensor:
        """Return several parameters, concatenated along their first axis."""
        return self.join([self.read(name, shape) for name, shape in parts])

    def linear_weight(self, parts: Sequence[Part], *, gated: bool = False) -> LinearWeight:
        """Return several weights [O_i, I] as one; `gated`: the first of two gates the second."""
        return self.pack(parts, self, gated=gated)

    def embedding(self, name: str, shape: tuple[int, ...], *, tied: bool) -> LinearWeight:
        """Return an embedding table [V, H], which is also the lm_head if the two are tied."""
        return self.linear_weight([(name, shape)]) if self.packs_table(name, tied) else self(name, shape)
