"""PackedLinear, FastNorm: replace linear layers and norms with equal results, and nothing else is replaced."""

from typing import Any

import torch
from torch import nn

from chairlift.model.transformers.linear_layers_with_shared_input import find_shared_inputs
from chairlift.model.transformers.replace_modules import replace_modules
from chairlift.model.transformers.replacement_modules import FastNorm, Multiply, PackedLinear
from support_replaced_modules import Maker, Model, Parallel


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
