"""Experts: a layer's experts with their router and the expert that every row is sent to.

x ┬─ router ─ experts and factors of each row
  ├─ experts ── Σ factor · down(activation(gate) · up) ─(+)─
  └─ shared expert ─ · sigmoid(gate)? ───────────────────┘
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.experts_config import ExpertsConfig
from chairlift.model.layers.expert_router import ChosenExperts, ExpertRouter
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.expert_weights import ExpertWeights
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert that every row is sent to.

    Attributes:
        gate_up: rows of gate, then up.
        down: back to [H].
        activation: of the gates.
        gate: [1, H], whose product's sigmoid is the factor of the output; None for the factor 1.
    """

    gate_up: Linear
    down: Linear
    activation: str
    gate: Tensor | None

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: ExpertsConfig, hidden: int) -> "SharedExpert":
        """Load name.shared_expert and name.shared_expert_gate."""
        inner, own = config.shared_size, f"{name}.shared_expert"
        gate = loader(f"{own}_gate.weight", (1, hidden)) if config.has_shared_gate else None
        return cls(
            Linear.load(loader, {f"{own}.gate_proj": inner, f"{own}.up_proj": inner}, hidden, False, gated=True),
            Linear.load(loader, {f"{own}.down_proj": hidden}, inner, False),
            config.activation,
            gate,
        )

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H]."""
        gate, up = self.gate_up(x, ops).chunk(2, dim=-1)
        out = self.down(ops.gated_activation(gate, up, self.activation), ops)
        return out if self.gate is None else torch.sigmoid(ops.linear(x, self.gate, None)) * out


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer of experts; has the place of an MLP."""

    router: ExpertRouter
    weights: ExpertWeights
    shared: SharedExpert | None

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: ExpertsConfig, hidden: int) -> "Experts":
        """Load name.gate, name.experts and, if there is one, name.shared_expert."""
        return cls(
            ExpertRouter.load(loader, f"{name}.gate", config.router, hidden),
            ExpertWeights.load(loader, f"{name}.experts", config, hidden),
            SharedExpert.load(loader, name, config, hidden) if config.shared_size else None,
        )

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H]."""
        return self.of_chosen(x, self.router(x, ops), ops)

    def of_chosen(self, x: Tensor, chosen: ChosenExperts, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H] by experts that are chosen already: Gemma 4's router has another input."""
        total = ops.sum_of_experts(x, chosen.experts, chosen.factors, self.weights)
        return total if self.shared is None else total + self.shared(x, ops)
