"""Take: how a family asks for its parameters, by name and shape, one by one or several joined into one tensor.

    take("model.norm.weight", (H,))                     the parameter itself
    take.rows([("q_proj.bias", (Q,)), ...])             several, one behind the other along their first axis
    take.matrix([("q_proj.weight", (Q, H)), ...])       the same, in the layout that Ops.linear likes

So names and shapes stand in one place, in the families. What a Take reads may be mapped from a file; what it hands out
never is: it is one copy of the weights, in the layout that is computed with, and the file need not stay in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Part = tuple[str, tuple[int, ...]]
"""Name and shape of a parameter in the checkpoint."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of the parts, one behind the other along their first axis."""
    return torch.cat(tuple(parts))


def unpacked(weight: Tensor) -> Tensor:
    """Return the weight itself: the layout of a checkpoint, [O, I]."""
    return weight


@dataclass(frozen=True, slots=True)
class Take:
    """Hands out parameters in the model's dtype and on its device.

    Attributes:
        read: returns the parameter of a name, which must have this shape.
        join: makes one new tensor of several.
        pack: brings a weight [O, I] into another layout; its result may be opaque to all but Ops.linear.
    """

    read: Callable[[str, tuple[int, ...]], Tensor]
    join: Callable[[Sequence[Tensor]], Tensor] = joined
    pack: Callable[[Tensor], Tensor] = unpacked

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the parameter of a name, which must have this shape."""
        return self.join([self.read(name, shape)])

    def rows(self, parts: Sequence[Part]) -> Tensor:
        """Return several parameters, one behind the other along their first axis."""
        return self.join([self.read(name, shape) for name, shape in parts])

    def matrix(self, parts: Sequence[Part]) -> Tensor:
        """Return several weights [O_i, I] as one for Ops.linear."""
        return self.pack(self.rows(parts))
