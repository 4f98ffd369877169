"""find_gated_mlp: MLPs of transformers are found with their activation and order, others are left."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Gemma2Config, GPT2Config, LlamaConfig, Phi3Config, Starcoder2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.starcoder2.modeling_starcoder2 import Starcoder2MLP

from chairlift.model.transformers.activation_detection import ACTIVATIONS
from chairlift.model.transformers.gated_mlp import FusedMLP, find_gated_mlp

SIZES: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2}


class MLP(nn.Module):
    """A gated MLP whose parts can be changed; `up` comes first."""

    def __init__(self, activation: Any = functional.silu, factor: float = 1.0, bias: bool = False) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(24, 40, bias=bias), nn.Linear(24, 40)
        self.down, self.factor, self.activation = nn.Linear(40, 24), factor, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x)) * self.factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "activation"),
    [
        (LlamaMLP(LlamaConfig(**SIZES)), "silu"),
        (LlamaMLP(LlamaConfig(**SIZES, mlp_bias=True, hidden_act="gelu")), "gelu"),
        (Gemma2MLP(Gemma2Config(**SIZES)), "gelu_pytorch_tanh"),
        (Phi3MLP(Phi3Config(**SIZES)), "silu"),
        (MLP(bias=True), "silu"),
    ],
    ids=["llama", "biases", "gemma2", "phi3", "up first"],
)
def test_gated_mlps_are_found_with_their_parts(module: nn.Module, activation: str, dtype: torch.dtype) -> None:
    module = module.to(dtype)
    found = find_gated_mlp(module)
    assert found is not None and found.activation == activation

    def gate_up(x: Tensor) -> Tensor:
        gate, up = functional.linear(x, found.gate_up, found.gate_up_bias).chunk(2, -1)
        return ACTIVATIONS[activation](gate) * up

    x = torch.randn(1, 5, 24).to(dtype)
    fused = FusedMLP(gate_up, module.get_submodule(found.down))
    assert torch.allclose(fused(x).float(), module(x).float(), atol=0.02 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize(
    "module",
    [
        MLP(), MLP(torch.tanh, bias=True), MLP(factor=1.1, bias=True), GPT2MLP(64, GPT2Config(n_embd=24)),
        Starcoder2MLP(Starcoder2Config(**SIZES)), nn.Linear(24, 24),
        nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24)),
    ],
    ids=["one bias", "tanh", "factor", "gpt2", "starcoder2", "linear", "two layers"],
)  # fmt: skip
def test_other_modules_are_left(module: nn.Module) -> None:
    assert find_gated_mlp(module) is None
