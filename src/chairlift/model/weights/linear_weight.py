"""LinearWeight: the weight of a linear layer, in the layout of who multiplies by it."""

from typing import Protocol


class LinearWeight(Protocol):
    """A weight [O, I]: a tensor, or of a type for which the Ops or the decoder of a backend has a product.

    The type belongs to each weight; a model may have several.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """O and I."""
        ...
