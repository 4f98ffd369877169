"""FusedOps: a layer's operations in as few torch operations as possible, for dtypes narrower than float64.

The numerics are those of TorchOps (ops.py) except for roundings: Llama's norm is rounded once, not twice, where its
weight is [H] (with [heads, H] twice, as in TorchOps), and a rotation twice, not three times. In float64 they would
differ from transformers, whose norms compute in float32; float64 models use TorchOps.
"""

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.config.experts_config import CLAMPED_SWIGLU
from chairlift.model.layers import onednn_linear
from chairlift.model.layers.ops import TorchOps, clamped_swiglu


class FusedOps(TorchOps):
    """Ops on any device, in any dtype but float64.

    Attributes:
        packs: whether weights are packed for oneDNN.
    """

    def __init__(self, packs: bool) -> None:
        self.packs = packs
        if packs:
            self.products = {**TorchOps.products, Tensor: onednn_linear.linear}

    def padded_size(self, num_tokens: int) -> int:
        """See Ops."""
        return onednn_linear.padded_rows(num_tokens) if self.packs else num_tokens

    def pack(self, weight: Tensor) -> Tensor:
        """See Ops."""
        return onednn_linear.pack(weight) if self.packs else weight

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        if weight.ndim == 1:
            return functional.rms_norm(x, weight.shape, weight, eps)
        return functional.rms_norm(x, x.shape[-1:], None, eps) * weight

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return self.rms_norm(x.float(), weight, eps).to(x.dtype)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        if activation == "silu":
            return functional.silu(gate).mul_(up)
        if activation == CLAMPED_SWIGLU:
            return clamped_swiglu(gate, up)
        return functional.gelu(gate, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none").mul_(up)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        return torch.tanh(logits / cap).mul_(cap)
