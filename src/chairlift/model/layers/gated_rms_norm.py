"""GatedRMSNorm, wide_rms_norm: the norm of the output of a layer with a state, multiplied by the activation of a gate.

    delta net   norm(x) · weight · activation(gate)      over each head
    Mamba-2     norm(x · SiLU(gate)) · weight            over each of some equal groups

It is computed in float32, or in float64 in a float64 model; transformers computes in float32 there, too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.layers.ops import Ops


@dataclass(frozen=True, slots=True)
class GatedRMSNorm:
    """A norm over groups of the last axis.

    Attributes:
        weight: [groups, width of a group], of the dtype that is computed in; one group's weight serves all groups.
        eps: added to the mean square.
        gate_first: whether x is multiplied by the gate before the norm, as in Mamba-2.
        activation: of the gate: "silu" or "sigmoid".
    """

    weight: Tensor
    eps: float
    gate_first: bool
    activation: str = "silu"

    def __call__(self, x: Tensor, gate: Tensor, ops: Ops) -> Tensor:
        """Normalise x [T, width] of the weight's dtype; gate [T, width] may have another; returns the weight's."""
        wide = gate.to(x.dtype)
        factor = functional.silu(wide) if self.activation == "silu" else wide.sigmoid()
        grouped = (x * factor if self.gate_first else x).view(len(x), -1, self.weight.shape[1])
        weight = self.weight[0] if len(self.weight) == 1 else self.weight
        normed = wide_rms_norm(grouped, weight, self.eps, ops).view(len(x), -1)
        return normed if self.gate_first else normed * factor


def wide_rms_norm(x: Tensor, weight: Tensor, eps: float, ops: Ops) -> Tensor:
    """Return Ops.rms_norm_float32 of x, but for x of float64 in float64."""
    if x.dtype != torch.float64:
        return ops.rms_norm_float32(x, weight, eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
