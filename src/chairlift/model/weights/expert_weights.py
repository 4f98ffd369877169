"""ExpertWeights: the projections of all experts of a layer, each in the layout of who multiplies by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.experts_config import ExpertsConfig
from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """down(activation(gate(x)) * up(x)) of E experts with I neurons.

    Attributes:
        gate_up: [2 I, H] of each expert; the rows are gate's, then up's.
        down: [H, I] of each expert.
        gate_up_bias: [E, 2 I], or None.
        down_bias: [E, H], or None.
        activation: see ExpertsConfig.
        stacked: what `gate_up` and `down` are parts of, each a tensor [E, 2 I, H] or [E, H, I], or codes of 4 bits
            [E * 2 I, H] or [E * H, I]; None if they are weights of their own.
    """

    gate_up: Sequence[LinearWeight]
    down: Sequence[LinearWeight]
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    activation: str
    stacked: tuple[Tensor | Int4Weight, Tensor | Int4Weight] | None = None

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: ExpertsConfig, hidden: int) -> "ExpertWeights":
        """Load name.N.gate_proj, name.N.up_proj and name.N.down_proj of each expert N."""
        inner, names = config.intermediate_size, [f"{name}.{index}" for index in range(config.router.num_experts)]

        def gate_up(expert: str) -> LinearWeight:
            parts = [(f"{expert}.{one}_proj.weight", (inner, hidden)) for one in ("gate", "up")]
            return loader.linear_weight(parts, gated=True)

        def down(expert: str) -> LinearWeight:
            return loader.linear_weight([(f"{expert}.down_proj.weight", (hidden, inner))])

        def biases(projections: Sequence[str], rows: int) -> Tensor:
            of_experts = ([(f"{expert}.{each}_proj.bias", (rows,)) for each in projections] for expert in names)
            return torch.stack([loader.concat(parts) for parts in of_experts])

        first, gate_up_stack = _load_each(names, gate_up)
        second, down_stack = _load_each(names, down)
        stacked = None if gate_up_stack is None or down_stack is None else (gate_up_stack, down_stack)
        gate_up_bias = biases(("gate", "up"), inner) if config.has_bias else None
        down_bias = biases(("down",), hidden) if config.has_bias else None
        return cls(first, second, gate_up_bias, down_bias, config.activation, stacked)


def _load_each(
    names: Sequence[str], load: Callable[[str], LinearWeight]
) -> tuple[tuple[LinearWeight, ...], Tensor | Int4Weight | None]:
    """Load the weight of each expert, one after another into a common one as long as they can be parts of it."""
    weights: list[LinearWeight] = []
    stacked: tuple[Tensor, ...] = ()
    for index, name in enumerate(names):
        weight = load(name)
        tensors = _tensors(weight)
        # Codes may fit a type of one expert and not that of another, or have scales of another dtype.
        if not tensors or (stacked and [each.dtype for each in tensors] != [each.dtype for each in stacked]):
            return (*weights, weight, *map(load, names[index + 1 :])), None
        stacked = stacked or tuple(each.new_empty(len(names), *each.shape) for each in tensors)
        for whole, own in zip(stacked, tensors, strict=True):
            whole[index] = own
        parts = [whole[index] for whole in stacked]
        weights.append(parts[0] if isinstance(weight, Tensor) else Int4Weight(*parts))
    return tuple(weights), stacked[0] if len(stacked) == 1 else Int4Weight(*(each.flatten(0, 1) for each in stacked))


def _tensors(weight: LinearWeight) -> tuple[Tensor, ...]:
    """Return the tensors of a weight that can be a part of a stacked one; none for other weights."""
    if isinstance(weight, Int4Weight):
        return weight.codes, weight.scales, weight.minima
    # Numbers that only have a shape need no memory.
    is_plain = isinstance(weight, Tensor) and weight.layout == torch.strided and weight.is_contiguous()
    return (weight,) if isinstance(weight, Tensor) and is_plain else ()
