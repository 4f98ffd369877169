"""find_shared_inputs: linear layers of one module that read the same tensor, so that one product can compute them.

A pass over the model records which object each layer reads. Layers of one parent with the same input are multiplied
together when the first of them is called; the others return their part. They share by the identity of the input, so a
layer that is called with another tensor computes its own part of that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class SharedProduct:
    """Several linear layers of one input, stacked.

    Owns: the products of the last input, until each layer has returned its own.
    """

    def __init__(self, multiply: Callable[[Tensor], Tensor], sizes: Sequence[int]) -> None:
        """`multiply` maps [..., I] to the outputs of all layers, [..., sum(sizes)]."""
        self._multiply = multiply
        self._sizes = list(sizes)
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, x: Tensor, index: int) -> Tensor:
        """Return the output of one layer for x [..., I]."""
        known = self._parts[index] if x is self._input else None
        if known is None:
            self._parts = list(torch.split(self._multiply(x), self._sizes, -1))
            known, self._input = self._parts[index], x
            assert known is not None
        self._parts[index] = None
        if not any(part is not None for part in self._parts):
            self._input = None
        return known


class SharedLinear(nn.Module):
    """One of the layers of a SharedProduct."""

    def __init__(self, product: SharedProduct, index: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.product, self.index = product, index
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., I] times the transpose of the layer's weight, plus its bias."""
        return self.product.part(x, self.index)


def find_shared_inputs(model: nn.Module, run: Callable[[], object]) -> list[list[str]]:
    """Return the paths of torch's linear layers that share their input, by groups, in the order of their calls.

    `run` runs the model once.
    """
    calls: list[tuple[str, Tensor]] = []
    hooks = []

    def record(path: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            calls.append((path, inputs[0]))  # the tensor is kept, so that no other has its identity

        return hook

    for path, module in model.named_modules():
        if type(module) is nn.Linear:
            hooks.append(module.register_forward_pre_hook(record(path)))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    times = [path for path, _ in calls]
    groups: dict[tuple[str, int], list[str]] = {}
    for path, value in calls:
        if times.count(path) == 1:  # a layer that runs several times in a pass shares nothing
            groups.setdefault((path.rpartition(".")[0], id(value)), []).append(path)
    return [paths for paths in groups.values() if len(paths) > 1]
