"""find_gated_mlp: an MLP whose gate, activation and product one operation can compute, recognised by its results.

    down(activation(gate(x)) * up(x))          two matrices [I -> F], one [F -> I]
    down(activation(g) * u), g, u = both(x)    one matrix [I -> 2 F], one [F -> I]

The activation is found by its values on a grid, the order of gate and up by the results on sample rows.
"""

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from chairlift.model.transformers.activation_detection import ACTIVATIONS, activation_name
from chairlift.model.transformers.module_probing import sample_rows, takes_one_tensor

TOLERANCE = 0.03
"""Largest relative difference between the results of the module and of its parts: that of bfloat16."""


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """The parts of an MLP.

    Attributes:
        gate_up: weight [2 F, I]: gates, then ups.
        gate_up_bias: [2 F], or None.
        down: name of the module's last linear layer.
        activation: a key of ACTIVATIONS.
    """

    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: str
    activation: str


class FusedMLP(nn.Module):
    """A gated MLP of two products."""

    def __init__(self, gate_up: Callable[[Tensor], Tensor], down: nn.Module) -> None:
        """`gate_up` maps [..., I] to activation(gate) * up, [..., F]."""
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., I] to [..., I]."""
        result: Tensor = self.down(self.gate_up(x))
        return result


@torch.inference_mode()
def find_gated_mlp(module: nn.Module) -> GatedMLP | None:
    """Return the parts of a module that is a gated MLP, or None if it computes something else."""
    linears = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
    others = [child for name, child in module.named_children() if name not in linears]
    if len(linears) not in (2, 3) or any(list(child.parameters()) for child in others) or list(module.buffers()):
        return None
    if len(list(module.parameters())) != sum(len(list(child.parameters())) for child in linears.values()):
        return None
    if not takes_one_tensor(module):
        return None
    activations = [name for name in map(activation_name, [*others, *_functions(module)]) if name is not None]
    for activation in dict.fromkeys(activations):
        for candidate in _candidates(linears, activation):
            if _computes(module, candidate):
                return candidate
    return None


def _candidates(linears: dict[str, nn.Linear], activation: str) -> Iterator[GatedMLP]:
    """Yield the gated MLPs whose sizes fit."""
    for down, last in linears.items():
        first = [linear for name, linear in linears.items() if name != down]
        outputs = sum(linear.out_features for linear in first)
        if outputs != 2 * last.in_features or any(linear.in_features != last.out_features for linear in first):
            continue
        weights = [half for linear in first for half in linear.weight.chunk(3 - len(first))]
        has_bias = {linear.bias is not None for linear in first}
        if len(has_bias) > 1 or weights[0].shape != weights[1].shape:
            continue
        biases = [half for linear in first if linear.bias is not None for half in linear.bias.chunk(3 - len(first))]
        for order in (1, -1):
            bias = torch.cat(biases[::order]) if biases else None
            yield GatedMLP(torch.cat(weights[::order]), bias, down, activation)


def _computes(module: nn.Module, mlp: GatedMLP) -> bool:
    rows = sample_rows(mlp.gate_up.shape[1], mlp.gate_up.dtype, mlp.gate_up.device)
    gate, up = functional.linear(rows, mlp.gate_up, mlp.gate_up_bias).chunk(2, -1)
    down: Any = getattr(module, mlp.down)
    expected = down(ACTIVATIONS[mlp.activation](gate) * up).double()
    try:
        found = module(rows[None])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    if not isinstance(found, Tensor) or found.shape != (1, *expected.shape):
        return False
    return bool((found[0].double() - expected).norm() <= TOLERANCE * expected.norm())


def _functions(module: nn.Module) -> list[Any]:
    """Return the functions that a module keeps as attributes."""
    return [
        value for value in vars(module).values() if isinstance(value, types.FunctionType | types.BuiltinFunctionType)
    ]
