"""Tests of PackedLinear, FusedRMSNorm, FastNorm."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D

from chairlift.model.transformers.replace_modules import replace_modules
from chairlift.model.transformers.replacement_modules import FastNorm, Multiply, PackedLinear
from chairlift.model.transformers.shared_inputs import find_shared_inputs


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


def test_linear_layers_and_norms_are_replaced_and_nothing_else() -> None:
    model = Model()
    x = torch.randn(3, 24)
    expected = [model.layers[0](x), model.layers[1](x), model.conv(x), model.norm(x)]
    replaced = replace_modules(model, maker := Maker())
    assert (replaced.linears, replaced.norms) == (3, 1) and str(
        replaced
    ) == "3 linear layers, 1 norms, 0 MLPs, 0 activations"
    assert isinstance(model.layers[2], nn.Embedding) and isinstance(model.layer_norm, nn.LayerNorm)
    assert isinstance(model.norm, FastNorm)
    found = [model.layers[0](x), model.layers[1](x), model.conv(x), model.norm(x)]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, expected, strict=True))
    conv: Any = model.conv
    assert isinstance(conv, PackedLinear) and (conv.in_features, conv.out_features) == (24, 40)
    assert sorted(maker.names) == ["conv", "layers.0", "layers.1"]


def test_replaced_layers_are_not_run_in_the_search_for_activations() -> None:
    model, x, widths = Parallel(bias=False), torch.randn(2, 24), set[int]()

    class Recording(Maker):
        def linear(self, *args: Any) -> Multiply:
            multiply = super().linear(*args)
            return lambda rows: (widths.add(rows.shape[-1]), multiply(rows))[1]

    replace_modules(model, Recording(), find_shared_inputs(model, lambda: model(x)))
    assert not widths
    model(x)
    assert widths == {24, 32}
