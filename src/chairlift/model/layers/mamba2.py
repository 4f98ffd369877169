"""Mamba2: a state space layer with one decay a head (Granite 4, Nemotron-H), in torch.

    x ─ projection ┬ gate ──────────────────────────────────── SiLU
                   ├ input, B, C ─ convolution ─ SiLU ─ recurrence ─(·)─ norm ─ output
                   └ dt ─ softplus, limits ─────────────┘

All between the two projections is computed in float32, or in float64 in a float64 model. transformers computes decay,
norm and the prefill's recurrence in float32 in a float64 model, too. Its prefill has the chunked form of the
recurrence, with other roundings, and its decode does not apply the limits of dt; here both do.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from chairlift.model.batch.state_cache import LayerStates, state_dtype
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import Mamba2Config
from chairlift.model.layers.causal_convolution import CausalConvolution
from chairlift.model.layers.gated_rms_norm import GatedRMSNorm
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 layer over the states of a step's rows.

    Attributes:
        config: sizes.
        projection: rows of gates, inputs, B, C and dt.
        decay_rate: [heads], -exp(A_log).
        dt_bias: [heads].
        skip: [heads], D: factor of a head's input in its output.
    """

    config: Mamba2Config
    projection: Linear
    convolution: CausalConvolution
    decay_rate: Tensor
    dt_bias: Tensor
    skip: Tensor
    norm: GatedRMSNorm
    output: Linear

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: Mamba2Config, hidden_size: int) -> "Mamba2":
        """Load the parameters under a name."""
        heads, inner, bias = config.num_heads, config.inner_width, config.projection_bias
        norm = loader(f"{name}.norm.weight", (inner,))
        wide = state_dtype(norm.dtype)
        rate, dt_bias, skip = (loader(f"{name}.{each}", (heads,)).to(wide) for each in ("A_log", "dt_bias", "D"))
        return cls(
            config=config,
            projection=Linear.load(loader, {f"{name}.in_proj": inner + config.channels + heads}, hidden_size, bias),
            convolution=CausalConvolution.load(
                loader, f"{name}.conv1d", config.channels, config.conv_width, config.conv_bias
            ),
            decay_rate=-rate.exp(),
            dt_bias=dt_bias,
            skip=skip,
            norm=GatedRMSNorm(norm.to(wide).view(config.num_groups, -1), config.norm_eps, gate_first=True),
            output=Linear.load(loader, {f"{name}.out_proj": hidden_size}, inner, bias),
        )

    def __call__(self, x: Tensor, states: LayerStates, step: StateStep, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H], and move the states of the step's rows on."""
        config = self.config
        widths = [config.inner_width, config.channels, config.num_heads]
        gate, mixed, dt = self.projection(x, ops).to(self.dt_bias.dtype).split_with_sizes(widths, dim=-1)
        mixed = functional.silu(self.convolution(mixed, states.convolution, step))
        inner, key, query = mixed.split_with_sizes([config.inner_width, config.group_width, config.group_width], dim=-1)
        inner = inner.reshape(len(x), config.num_heads, config.head_dim)
        dt = functional.softplus(dt + self.dt_bias).clamp(config.min_dt, config.max_dt)
        out = ops.run_recurrence(
            self._groups(query), self._groups(key), inner * dt.unsqueeze(-1), (self.decay_rate * dt).exp(), None,
            states, step,
        )  # fmt: skip
        out = out + inner * self.skip.unsqueeze(-1)
        return self.output(self.norm(out.view(len(x), -1), gate, ops).to(x.dtype), ops)

    def _groups(self, x: Tensor) -> Tensor:
        """Return B or C [T, group width] by group, [T, groups, state_size]."""
        return x.reshape(len(x), self.config.num_groups, self.config.state_size)
