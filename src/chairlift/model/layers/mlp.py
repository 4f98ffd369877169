"""MLP, MLPWithExperts: the gated MLP of a layer, alone or with experts beside it, each part with norms of its own.

    before_mlp(x) ─ MLP ─ after_mlp ────────────────────────────(+)─
    x ┬─ router ────────────────┐                                │
      └─ before_experts ─ experts of each row ─ after_experts ───┘

Source: transformers 5.23 models/gemma4.
"""

from dataclasses import dataclass

from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig, ExpertNorms
from chairlift.model.config.experts_config import ExpertsConfig
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class MLP:
    """down(activation(gate(x)) * up(x)); the rows of gate_up are gate's, then up's."""

    gate_up: Linear
    down: Linear
    activation: str

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: DecoderConfig, inner: int) -> "MLP":
        """Load the three projections, with `inner` neurons, under a name."""
        hidden, bias = config.hidden_size, config.mlp_bias
        return cls(
            Linear.load(loader, {f"{name}.gate_proj": inner, f"{name}.up_proj": inner}, hidden, bias, gated=True),
            Linear.load(loader, {f"{name}.down_proj": hidden}, inner, bias),
            config.activation,
        )

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H]."""
        gate, up = self.gate_up(x, ops).chunk(2, dim=-1)
        return self.down(ops.gated_activation(gate, up, self.activation), ops)


@dataclass(frozen=True, slots=True)
class MLPWithExperts:
    """The sum of an MLP and of experts, which read the hidden state through norms of their own."""

    mlp: MLP
    after_mlp: RMSNorm
    before_experts: RMSNorm
    experts: Experts
    after_experts: RMSNorm

    @classmethod
    def load(
        cls, loader: ParameterLoader, layer: str, config: DecoderConfig, experts: ExpertsConfig, norms: ExpertNorms,
        inner: int,
    ) -> "MLPWithExperts":  # fmt: skip
        """Load layer.mlp, its experts by canonical names, and the norms."""
        hidden = config.hidden_size

        def norm(name: str) -> RMSNorm:
            return RMSNorm.load(loader, f"{layer}.{name}", hidden, config)

        return cls(
            mlp=MLP.load(loader, f"{layer}.mlp", config, inner),
            after_mlp=norm(norms.after_mlp),
            before_experts=norm(norms.before_experts),
            experts=Experts.load(loader, f"{layer}.mlp", experts, hidden),
            after_experts=norm(norms.after_experts),
        )

    def __call__(self, x: Tensor, normed: Tensor, ops: Ops) -> Tensor:
        """Map the hidden state x [T, H], and its norm before the MLP, to [T, H]."""
        # Before the norms, which need whole sums and not a rank's part of them.
        mapped = ops.sum_over_ranks(self.mlp(normed, ops))
        chosen = self.experts.router(x, ops)
        routed = ops.sum_over_ranks(self.experts.of_chosen(self.before_experts(x, ops), chosen, ops))
        return self.after_mlp(mapped, ops) + self.after_experts(routed, ops)
