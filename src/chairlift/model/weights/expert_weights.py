"""ExpertWeights: the projections of all experts of a layer, each in the layout of who multiplies by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.experts_config import ExpertsConfig
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
        stacked: [E, 2 I, H] and [E, H, I], whose parts `gate_up` and `down` are; None if they are no plain tensors.
    """

    gate_up: Sequence[LinearWeight]
    down: Sequence[LinearWeight]
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    activation: str
    stacked: tuple[Tensor, Tensor] | None = None

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
) -> tuple[tuple[LinearWeight, ...], Tensor | None]:
    """Load the weight of each expert, one after another into a common tensor as long as they are plain ones."""
    weights: list[LinearWeight] = []
    stacked: Tensor | None = None
    for index, name in enumerate(names):
        weight = load(name)
        # Codes may fit a type of one expert and not that of another. Numbers that only have a shape need no memory.
        if not isinstance(weight, Tensor) or weight.layout != torch.strided or not weight.is_contiguous():
            return (*weights, weight, *map(load, names[index + 1 :])), None
        if stacked is None:
            stacked = weight.new_empty(len(names), *weight.shape)
        stacked[index] = weight
        weights.append(stacked[index])
    return tuple(weights), stacked
