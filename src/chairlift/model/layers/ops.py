"""Ops: the operations of a layer besides attention, as a seam for native backends, and TorchOps, their reference.

The numerics are transformers', named here because an oracle in float64 meets them too:

    norm island, Llama kind   x to float32, normalised, rounded to x's dtype, then multiplied by the weight
    norm island, Gemma kind   x to float32, normalised, multiplied by (1 + weight) in float32, then rounded
    RoPE island               cosines and sines are float32 numbers (rope.py); the rotation is done in x's dtype
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Ops(Protocol):
    """What a layer computes. No operation changes its arguments or mixes rows of different tokens."""

    def padded(self, num_tokens: int) -> int:
        """Return how many rows, at least so many, a step should have; what is beyond is padding."""
        ...

    def pack(self, weight: Tensor) -> Tensor:
        """Return weight [O, I] in the layout that `linear` likes best; perhaps itself, perhaps opaque to all others."""
        ...

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """Look up input_ids int64 [T] in table [V, H]; returns [T, H]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x [T, I] times the transpose of weight [O, I], packed or not, plus bias [O]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Llama's norm over the last axis; weight [H] or [heads, H] has x's dtype."""
        ...

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Gemma's norm over the last axis; weight [H] or [heads, H] is float32 and has its 1 added."""
        ...

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """Return activation(gate) * up, elementwise; activation is one of config.ACTIVATIONS."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [T, heads, D]: element i together with element i + D / 2.

        cos and sin [T, 1, D] have each angle twice, and the first half of sin is negated (RopeTable.at).
        """
        ...

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """Return cap * tanh(logits / cap)."""
        ...


class TorchOps:
    """Ops in plain torch, on any device and dtype; the oracle of every other implementation."""

    def padded(self, num_tokens: int) -> int:
        """See Ops."""
        return num_tokens

    def pack(self, weight: Tensor) -> Tensor:
        """See Ops."""
        return weight

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """See Ops."""
        return functional.embedding(input_ids, table)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return functional.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return weight * _normalised(x, eps).to(x.dtype)

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return (_normalised(x, eps) * weight).to(x.dtype)

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        if activation == "silu":
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none") * up

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        (left, right), half = x.chunk(2, dim=-1), x.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., half:]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        return torch.tanh(logits / cap) * cap


def _normalised(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
