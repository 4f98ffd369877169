"""GatedDeltaNet: linear attention with decay and the delta rule (Qwen3-Next, Qwen3.5, Qwen3.6), in torch.

    x ─ projection ┬ query, key, value ─ convolution ─ SiLU ─ recurrence ─ norm ─(·)─ output
                   ├ gate ────────────────────────────────────────│────────── SiLU
                   └ b, a ─ beta, decay ──────────────────────────┘

All between the two projections is computed in float32, or in float64 in a float64 model. transformers computes decay,
recurrence and norm in float32 in a float64 model, too, and rounds to the model's dtype after the convolution and after
the recurrence. Its prefill has the chunked form of the recurrence, with other roundings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.batch.state_cache import LayerStates, state_dtype
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import GatedDeltaNetConfig
from chairlift.model.layers.causal_convolution import CausalConvolution
from chairlift.model.layers.gated_rms_norm import GatedRMSNorm
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader

UNIT_EPS = 1e-6
"""Added to the square of the length of a query or key before it is scaled to length 1."""


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A gated delta net over the states of a step's rows.

    Attributes:
        config: sizes.
        projection: rows of queries, keys, values, gates, b and a.
        decay_rate: [value heads], -exp(A_log).
        dt_bias: [value heads], added to a.
    """

    config: GatedDeltaNetConfig
    projection: Linear
    convolution: CausalConvolution
    decay_rate: Tensor
    dt_bias: Tensor
    norm: GatedRMSNorm
    output: Linear

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: GatedDeltaNetConfig, hidden_size: int) -> "GatedDeltaNet":
        """Load the parameters under a name; they are named as in Qwen3.5 (state_layers.py: qkvz_row_order)."""
        heads = config.num_value_heads
        projections = {
            f"{name}.in_proj_qkv": config.channels, f"{name}.in_proj_z": config.value_width,
            f"{name}.in_proj_b": heads, f"{name}.in_proj_a": heads,
        }  # fmt: skip
        norm, rate = loader(f"{name}.norm.weight", (config.value_dim,)), loader(f"{name}.A_log", (heads,))
        wide = state_dtype(norm.dtype)
        return cls(
            config=config,
            projection=Linear.load(loader, projections, hidden_size, bias=False),
            convolution=CausalConvolution.load(
                loader, f"{name}.conv1d", config.channels, config.conv_width, bias=False
            ),
            decay_rate=-rate.to(wide).exp(),
            dt_bias=loader(f"{name}.dt_bias", (heads,)).to(wide),
            norm=GatedRMSNorm(norm.to(wide).unsqueeze(0), config.norm_eps, False, config.gate_activation),
            output=Linear.load(loader, {f"{name}.out_proj": hidden_size}, config.value_width, bias=False),
        )

    def __call__(self, x: Tensor, states: LayerStates, step: StateStep, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H], and move the states of the step's rows on."""
        config = self.config
        heads = config.num_value_heads
        widths = [config.channels, config.value_width, heads, heads]
        mixed, gate, b, a = self.projection(x, ops).to(self.dt_bias.dtype).split_with_sizes(widths, dim=-1)
        mixed = functional.silu(self.convolution(mixed, states.convolution, step))
        query, key, value = mixed.split_with_sizes([config.key_width, config.key_width, config.value_width], dim=-1)
        value = value.reshape(len(x), heads, config.value_dim)
        decay = (self.decay_rate * functional.softplus(a + self.dt_bias)).exp()
        assert states.recurrent is not None, "a delta net has a recurrent state"
        out = ops.run_recurrence(
            self._heads(query) * config.key_dim**-0.5, self._heads(key), value, decay, b.sigmoid(), states.recurrent,
            step,
        )  # fmt: skip
        return self.output(self.norm(out.view(len(x), -1), gate).to(x.dtype), ops)

    def _heads(self, x: Tensor) -> Tensor:
        """Return queries or keys [T, key width] with length 1, and each as often as it serves value heads."""
        heads = x.reshape(len(x), self.config.num_key_heads, self.config.key_dim)
        unit = heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + UNIT_EPS)
        return unit.repeat_interleave(self.config.num_value_heads // self.config.num_key_heads, dim=1)
