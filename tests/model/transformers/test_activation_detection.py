"""activation_name: activations of transformers by their values, whatever their class."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from chairlift.model.transformers.activation_detection import ACTIVATIONS, Activation, activation_name
from support_shares import for_each


@for_each(
    ("function", "name"),
    [
        (ACT2FN["silu"], "silu"), (ACT2FN["gelu"], "gelu"), (ACT2FN["gelu_python"], "gelu"),
        (ACT2FN["gelu_new"], "gelu_pytorch_tanh"), (ACT2FN["gelu_fast"], "gelu_pytorch_tanh"),
        (ACT2FN["gelu_pytorch_tanh"], "gelu_pytorch_tanh"), (torch.tanh, None), (ACT2FN["relu2"], None),
        (ACT2FN["quick_gelu"], None), (nn.Linear(3, 3), None), (lambda: 1, None), (lambda x: "text", None),
    ],
)  # fmt: skip
def test_activations_are_known_by_their_values(function: Any, name: str | None) -> None:
    assert activation_name(function) == name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_module_of_one_operation_has_its_values(name: str) -> None:
    x = torch.linspace(-3, 3, 50)
    assert torch.equal(Activation(name)(x), ACTIVATIONS[name](x)) and activation_name(Activation(name)) == name
