"""replace_modules: what counts as a linear layer or an RMS norm is what it computes; everything else stays."""

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import NewGELUActivation
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from chairlift.model.transformers.activation_detection import Activation
from chairlift.model.transformers.linear_layers_with_shared_input import find_shared_inputs
from chairlift.model.transformers.module_probing import are_close
from chairlift.model.transformers.replace_modules import fused_norm, replace_modules
from support_replaced_modules import Maker, Model, Norm, Parallel

DTYPES = (torch.float32, torch.bfloat16)


def scaled(module: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 1 + 0.3 * torch.randn(parameter.shape, generator=generator)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm])
def test_norms_of_transformers_are_found_and_computed_alike(kind: type[nn.Module], dtype: torch.dtype) -> None:
    for eps in (1e-6, 1e-5):
        module = scaled(kind(24, eps=eps), dtype)
        found = fused_norm(module)
        assert found is not None and found.weight is module.weight
        for size in (1.0, 1e-2, 1e-4):
            x = size * torch.randn(2, 5, 24).to(dtype)
            assert are_close(module(x), found(x))


def test_the_number_under_the_root_is_found_whatever_its_name() -> None:
    for eps in (1e-4, 1e-6, 0.01):
        found = fused_norm(Norm(eps=eps))
        assert found is not None and found.variance_epsilon == eps


@pytest.mark.parametrize(
    "module",
    [
        Norm(factor=1.1), Norm(shift=0.01), nn.LayerNorm(24, bias=False), nn.LayerNorm(24), nn.PReLU(24),
        nn.Linear(24, 24), Norm().double(), nn.RMSNorm(24, eps=0.5), nn.ReLU(),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_modules_that_compute_something_else_are_no_norms(module: nn.Module) -> None:
    assert fused_norm(module) is None


class GatedNorm(Norm):
    """An RMS norm that may be given a gate."""

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x if gate is None else x * nn.functional.silu(gate))


class GatedMLP(LlamaMLP):
    """An MLP that may be given a factor."""

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        made: Tensor = super().forward(x)
        return made * factor


def test_modules_with_a_second_argument_stay_as_they_are() -> None:
    config = LlamaConfig(hidden_size=24, intermediate_size=32, num_attention_heads=2)
    model, x, gate = nn.ModuleList([GatedNorm(), GatedMLP(config)]), torch.randn(3, 24), torch.randn(3, 24)
    assert fused_norm(Norm()) is not None and fused_norm(GatedNorm()) is None
    expected = model[0](x, gate), model[1](x, 2.0)
    replaced = replace_modules(model, Maker())
    assert (replaced.norms, replaced.mlps) == (0, 0)
    found = model[0](x, gate), model[1](x, 2.0)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, expected, strict=True))


def test_a_fused_norm_sees_changes_of_the_weight_in_place() -> None:
    module = Norm()
    found = fused_norm(module)
    assert found is not None
    module.weight.data.mul_(3)
    x = torch.randn(2, 24)
    assert are_close(module(x), found(x))


def test_without_a_maker_linear_layers_stay() -> None:
    model = Model()
    assert str(replace_modules(model, None)) == "0 linear layers, 1 norms, 0 MLPs, 0 activations" and isinstance(
        model.conv, Conv1D
    )


class Transposed(nn.Module):
    """Has the parameters of Conv1D and computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight + self.bias)


def test_a_matrix_in_another_function_is_no_linear_layer() -> None:
    model = nn.Sequential(Transposed())
    assert replace_modules(model, Maker()).linears == 0


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_input_and_gated_mlps_are_multiplied_together(bias: bool) -> None:
    model, x = Parallel(bias), torch.randn(2, 3, 24)
    expected = model(x)
    shared = find_shared_inputs(model, lambda: model(x))
    assert shared == [["q", "k", "v"], ["mlp.gate_proj", "mlp.up_proj"]]
    replaced = replace_modules(model, maker := Maker(), shared)
    assert str(replaced) == "4 linear layers, 0 norms, 1 MLPs, 0 activations"
    assert maker.names == ["mlp.gate_up", "q + k + v", "mlp.down"]
    assert torch.allclose(model(x), expected, atol=1e-5)
    other = torch.randn(2, 3, 24)
    assert torch.allclose(model(other)[..., :40], model.q(other), atol=1e-5)


def test_activations_of_many_operations_become_one() -> None:
    model, x = nn.Sequential(nn.Linear(24, 24), NewGELUActivation(), nn.Tanh()), torch.randn(3, 24)
    expected = model(x)
    assert replace_modules(model, Maker()).activations == 1
    assert isinstance(model[1], Activation) and isinstance(model[2], nn.Tanh)
    assert torch.allclose(model(x), expected, atol=1e-5)
    assert replace_modules(nn.Sequential(NewGELUActivation()), None).activations == 0
