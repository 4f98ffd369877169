"""replace_modules: faster modules in the place of a model's linear layers and norms, chosen by what they compute.

A linear layer is a module with one matrix (torch's Linear, or GPT-2's Conv1D, whose matrix is transposed). A norm is
any module with one vector whose results on sample rows are those of an RMS norm. Names do not matter. A module whose
forward has a second parameter stays as it is, because that may change its results.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from chairlift.model.transformers.activation_detection import Activation, activation_name
from chairlift.model.transformers.gated_mlp import FusedMLP, find_gated_mlp
from chairlift.model.transformers.linear_layers_with_shared_input import SharedLinear, SharedProduct
from chairlift.model.transformers.module_probing import are_close, sample_rows, takes_one_tensor
from chairlift.model.transformers.replacement_modules import FastNorm, FusedRMSNorm, Multiply, PackedLinear

SCALES = (1.0, 1e-3)
"""Factors of the sample rows of a norm; with the second, the number added to the mean square shows."""


_FAST = (PackedLinear, SharedLinear, FastNorm, Activation)


class LayerMaker(Protocol):
    """Makes the fast layers of one kind of kernels. The weights are copied."""

    def linear(self, name: str, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Multiply:
        """Pack weight [O, I] and bias [O]; with an activation the first half of the outputs are gates of the second."""
        ...

    def rms_norm(self, factors: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
        """Return an RMS norm with factors [H]."""
        ...


@dataclass(slots=True)
class Replaced:
    """The numbers of modules that were replaced."""

    linears: int = 0
    norms: int = 0
    mlps: int = 0
    activations: int = 0

    def __str__(self) -> str:
        return f"{self.linears} linear layers, {self.norms} norms, {self.mlps} MLPs, {self.activations} activations"


def replace_modules(model: nn.Module, maker: LayerMaker | None, shared: Sequence[Sequence[str]] = ()) -> Replaced:
    """Replace linear layers, MLPs and norms; without a maker only norms, which keep their own weights.

    `shared`: paths of linear layers with the same input. The weights of replaced layers are freed one after another, so
    that a model does not lie in memory twice.
    """
    replaced = Replaced()
    if maker is not None:
        _replace_mlps(model, maker, replaced)
        for paths in shared:
            _replace_shared(model, paths, maker, replaced)
    for parent, name, path in list(_leaves(model)):
        module = getattr(parent, name)
        if maker is not None and (matrix := _matrix_of(module)) is not None:
            weight, bias = matrix
            setattr(parent, name, PackedLinear(maker.linear(path, weight, bias), weight.shape[1], weight.shape[0]))
            replaced.linears += 1
        elif (norm := fused_norm(module)) is not None:
            setattr(
                parent, name, norm if maker is None else FastNorm(maker.rms_norm(norm.factors(), norm.variance_epsilon))
            )
            replaced.norms += 1
        elif maker is not None and (activation := _activation_of(module)) is not None:
            setattr(parent, name, activation)
            replaced.activations += 1
    return replaced


def _replace_mlps(model: nn.Module, maker: LayerMaker, replaced: Replaced) -> None:
    for path, module in list(model.named_modules()):
        if (mlp := find_gated_mlp(module)) is None:
            continue
        parent, _, name = path.rpartition(".")
        gate_up = maker.linear(f"{path}.gate_up", mlp.gate_up, mlp.gate_up_bias, mlp.activation)
        setattr(model.get_submodule(parent), name, FusedMLP(gate_up, module.get_submodule(mlp.down)))
        replaced.mlps += 1


def _replace_shared(model: nn.Module, paths: Sequence[str], maker: LayerMaker, replaced: Replaced) -> None:
    try:
        layers = [model.get_submodule(path) for path in paths]
    except AttributeError:
        return  # they were part of an MLP
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(linears) < len(paths) or len({linear.bias is None for linear in linears}) > 1:
        return
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    multiply = maker.linear(" + ".join(paths), weight, torch.cat(biases) if biases else None)
    product = SharedProduct(multiply, [linear.out_features for linear in linears])
    for index, (path, linear) in enumerate(zip(paths, linears, strict=True)):
        parent, _, name = path.rpartition(".")
        shared = SharedLinear(product, index, linear.in_features, linear.out_features)
        setattr(model.get_submodule(parent), name, shared)
        replaced.linears += 1


def _leaves(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield modules without children: their parent, their name in it and their path."""
    for path, module in model.named_modules():
        for name, child in module.named_children():
            if not list(child.children()):
                yield module, name, f"{path}.{name}" if path else name


def _activation_of(module: nn.Module) -> Activation | None:
    """Return a module without parameters that computes a known activation as one of one operation."""
    if isinstance(module, _FAST):  # its weights are packed, so that it has no parameters
        return None
    if any(True for _ in (*module.parameters(), *module.buffers())) or not takes_one_tensor(module):
        return None
    name = activation_name(module)
    return None if name is None else Activation(name)


def _matrix_of(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return weight [O, I] and bias [O] of a linear layer; None for another module."""
    parameters = dict(module.named_parameters(recurse=False))
    if type(module) is nn.Linear:
        return module.weight.detach(), None if module.bias is None else module.bias.detach()
    # GPT-2's layer has its matrix as [I, O] and always a bias.
    if set(parameters) == {"weight", "bias"} and parameters["weight"].ndim == 2 and not list(module.buffers()):
        weight, bias = parameters["weight"].detach(), parameters["bias"].detach()
        if len(bias) == weight.shape[1] and takes_one_tensor(module) and _computes_transposed(module, weight, bias):
            return weight.T.contiguous(), bias
    return None


@torch.inference_mode()
def _computes_transposed(module: nn.Module, weight: Tensor, bias: Tensor) -> bool:
    x = sample_rows(len(weight), weight.dtype, weight.device)[None]
    try:
        return are_close(module(x), torch.addmm(bias, x[0], weight)[None])
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False


@torch.inference_mode()
def fused_norm(module: nn.Module) -> FusedRMSNorm | None:
    """Return a fused norm that computes what a module computes, or None if it computes something else."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    if len(parameters) != 1 or weight is None or weight.ndim != 1 or isinstance(module, FusedRMSNorm):
        return None
    if not takes_one_tensor(module):
        return None  # such as a gated norm
    if weight.dtype == torch.float64:
        return None  # transformers' norms compute in float32 then, in an order of their own
    rows = sample_rows(len(weight), weight.dtype, weight.device)[None]
    samples = [rows * scale for scale in SCALES]
    for eps in _small_numbers(module):
        for offset, in_float32 in ((False, False), (True, True), (False, True)):
            norm = FusedRMSNorm(weight, eps, offset=offset, in_float32=in_float32)
            try:
                if all(are_close(module(x), norm(x)) for x in samples):
                    return norm
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                return None
    return None


def _small_numbers(module: nn.Module) -> list[float]:
    """Return the numbers of a module that may be its epsilon."""
    values = [value for value in vars(module).values() if isinstance(value, float) and 0 < value < 0.1]
    return list(dict.fromkeys(values))
