"""ShortConvolution: out_proj(C · convolution(B · x)), the layers of LFM2 that are not attention, in torch.

B, C and x are the parts of in_proj's output. All between the two projections is computed in float32, or in float64 in
a float64 model; transformers computes in the model's dtype.
"""

from dataclasses import dataclass

from torch import Tensor

from chairlift.model.batch.state_cache import LayerStates
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import ShortConvConfig
from chairlift.model.layers.causal_convolution import CausalConvolution
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated short convolution over the states of a step's rows.

    Attributes:
        config: sizes.
        projection: rows of B, C and x.
    """

    config: ShortConvConfig
    projection: Linear
    convolution: CausalConvolution
    output: Linear

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: ShortConvConfig) -> "ShortConvolution":
        """Load the parameters under a name."""
        hidden, bias = config.hidden_size, config.bias
        return cls(
            config=config,
            projection=Linear.load(loader, {f"{name}.in_proj": 3 * hidden}, hidden, bias),
            convolution=CausalConvolution.load(loader, f"{name}.conv", hidden, config.conv_width, bias),
            output=Linear.load(loader, {f"{name}.out_proj": hidden}, hidden, bias),
        )

    def __call__(self, x: Tensor, states: LayerStates, step: StateStep, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H], and move the states of the step's rows on."""
        before, after, inner = self.projection(x, ops).to(self.convolution.weight.dtype).chunk(3, dim=-1)
        mixed = self.convolution(before * inner, states.convolution, step)
        return self.output((after * mixed).to(x.dtype), ops)
