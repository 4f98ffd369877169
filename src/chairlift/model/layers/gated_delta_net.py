"""GatedDeltaNet: linear attention with decay and the delta rule (Qwen3-Next, Qwen3.5, Qwen3.6), in torch.

    x ─ projection ┬ query, key, value ─ convolution ─ SiLU ─ recurrence ─ norm ─(·)─ output
                   ├ gate ────────────────────────────────────────│────────── SiLU
                   └ b, a ─ beta, decay ──────────────────────────┘

All between the two projections is computed in float32, or in float64 in a float64 model. transformers computes decay,
recurrence and norm in float32 in a float64 model, too, and rounds to the model's dtype after the convolution and after
the recurrence. Its prefill has the chunked form of the recurrence, with other roundings.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from chairlift.model.batch.state_cache import LayerStates, state_dtype
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import GatedDeltaNetConfig
from chairlift.model.layers.causal_convolution import CausalConvolution
from chairlift.model.layers.gated_rms_norm import GatedRMSNorm, wide_rms_norm
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader

UNIT_EPS = 1e-6
"""Added to the square of the length of a query or key before it is scaled."""


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A gated delta net over the states of a step's rows.

    Attributes:
        config: sizes.
        projection: rows of queries, keys, values, gates, b and a.
        decay_rate: [value heads], -exp(A_log).
        dt_bias: [value heads], added to a.
        lengths: [2 * key heads, key_dim], weights of the norm of queries and keys.
    """

    config: GatedDeltaNetConfig
    projection: Linear
    convolution: CausalConvolution
    decay_rate: Tensor
    dt_bias: Tensor
    lengths: Tensor
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
            lengths=_norm_weights(config, norm.to(wide)),
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
        heads_of_keys, value = mixed.split_with_sizes([2 * config.key_width, config.value_width], dim=-1)
        query, key = self._unit_heads(heads_of_keys, ops)
        value = value.reshape(len(x), heads, config.value_dim)
        decay = (self.decay_rate * functional.softplus(a + self.dt_bias)).exp()
        out = ops.run_recurrence(
            query, key, value, decay, b.sigmoid(), states, step,
        )  # fmt: skip
        return self.output(self.norm(out.view(len(x), -1), gate, ops).to(x.dtype), ops)

    def _unit_heads(self, x: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """Scale queries and keys [T, 2 * key width] to their lengths; return each, [T, key heads, key_dim]."""
        config = self.config
        heads = x.reshape(len(x), 2 * config.num_key_heads, config.key_dim)
        scaled = wide_rms_norm(heads, self.lengths, UNIT_EPS / config.key_dim, ops)
        return scaled[:, : config.num_key_heads], scaled[:, config.num_key_heads :]


def _norm_weights(config: GatedDeltaNetConfig, like: Tensor) -> Tensor:
    """Return the weights of an RMS norm that scales queries to the length 1 / sqrt(key_dim), and keys to 1."""
    key = config.key_dim**-0.5
    rows = like.new_tensor([key * key, key]).repeat_interleave(config.num_key_heads)
    return rows.unsqueeze(1).expand(-1, config.key_dim).contiguous()
