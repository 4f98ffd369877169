"""Modules of torch that replace_modules replaces, and a maker of those that take their place."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D

from chairlift.model.transformers.replacement_modules import Multiply


class Norm(nn.Module):
    """An RMS norm whose parts can be changed."""

    def __init__(self, *, eps: float = 1e-6, factor: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 24))
        self.anything, self.factor, self.shift = eps, factor, shift

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.anything)
        return self.weight * normed * self.factor + self.shift


class Model(nn.Module):
    """Modules of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 40, bias=False), nn.Linear(24, 24), nn.Embedding(9, 24)])
        self.norm, self.layer_norm = Norm(), nn.LayerNorm(24)
        self.conv = Conv1D(40, 24)


class Maker:
    """Makes layers of torch and notes their names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def linear(self, name: str, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Multiply:
        self.names.append(name)
        if activation is None:
            return lambda x: nn.functional.linear(x, weight, bias)

        def gated(x: Tensor) -> Tensor:
            gate, up = nn.functional.linear(x, weight, bias).chunk(2, -1)
            return nn.functional.silu(gate) * up

        return gated

    def rms_norm(self, factors: Tensor, eps: float) -> Multiply:
        return lambda x: nn.functional.rms_norm(x, factors.shape, factors, eps)


class Parallel(nn.Module):
    """Three projections of one input, a gated MLP, and a module inside that must stay as it is."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, size, bias=bias) for size in (40, 8, 16))
        self.mlp = LlamaMLP(LlamaConfig(hidden_size=24, intermediate_size=32, num_attention_heads=2, mlp_bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.q(x), self.k(x), self.v(x), self.mlp(x)], -1)
