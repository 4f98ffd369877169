"""replace_modules: faster modules in the place of a model's linear layers and norms, chosen by what they compute.

A linear layer is a module with one matrix (torch's Linear, or GPT-2's Conv1D, whose matrix is transposed). A norm is
any module with one vector whose results on sample rows are those of an RMS norm. Names do not matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Multiply = Callable[[Tensor], Tensor]
"""Maps rows [..., I] to [..., O]."""

MakeLinear = Callable[[str, Tensor, Tensor | None], Multiply]
"""Packs the weight [O, I] and the bias [O] of the linear layer of a name."""

SAMPLE_ROWS = 4
SCALES = (1.0, 1e-3)
"""Factors of the sample rows of a norm; with the second, the number added to the mean square shows."""


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed for the kernels that multiply with it."""

    def __init__(self, multiply: Multiply, in_features: int, out_features: int) -> None:
        super().__init__()
        self.multiply = multiply
        self.in_features = in_features
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., I] times the transpose of the weight, plus the bias."""
        return self.multiply(x)


class FusedRMSNorm(nn.Module):
    """An RMS norm in one operation of torch, or three in float32, over a module's own weight."""

    def __init__(self, weight: nn.Parameter, eps: float, *, offset: bool, in_float32: bool) -> None:
        """`offset`: the factor is 1 + weight, as Gemma has it; `in_float32`: it is applied before rounding."""
        super().__init__()
        self.weight = weight
        self.variance_epsilon = eps
        self._offset = offset
        self._in_float32 = in_float32

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., H]."""
        weight: Tensor = self.weight
        if not self._in_float32:
            return functional.rms_norm(x, weight.shape, 1 + weight if self._offset else weight, self.variance_epsilon)
        weight = weight.float()
        normed = functional.rms_norm(
            x.float(), weight.shape, 1 + weight if self._offset else weight, self.variance_epsilon
        )
        return normed.to(x.dtype)


@dataclass(frozen=True, slots=True)
class Replaced:
    """The numbers of modules that were replaced."""

    linears: int
    norms: int

    def __str__(self) -> str:
        return f"{self.linears} linear layers, {self.norms} norms"


def replace_modules(model: nn.Module, make_linear: MakeLinear | None) -> Replaced:
    """Replace linear layers, with `make_linear`, and norms; None leaves the linear layers.

    The replaced layers' own weights are freed, so that both never lie in memory together.
    """
    linears = norms = 0
    for parent, name, path in list(_leaves(model)):
        module = getattr(parent, name)
        if make_linear is not None and (matrix := _matrix_of(module)) is not None:
            weight, bias = matrix
            setattr(parent, name, PackedLinear(make_linear(path, weight, bias), weight.shape[1], weight.shape[0]))
            linears += 1
        elif (norm := fused_norm(module)) is not None:
            setattr(parent, name, norm)
            norms += 1
    return Replaced(linears, norms)


def _leaves(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield modules without children: their parent, their name in it and their path."""
    for path, module in model.named_modules():
        for name, child in module.named_children():
            if not list(child.children()):
                yield module, name, f"{path}.{name}" if path else name


def _matrix_of(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return weight [O, I] and bias [O] of a linear layer; None for another module."""
    parameters = dict(module.named_parameters(recurse=False))
    if type(module) is nn.Linear:
        return module.weight.detach(), None if module.bias is None else module.bias.detach()
    # GPT-2's layer has its matrix as [I, O] and always a bias.
    if set(parameters) == {"weight", "bias"} and parameters["weight"].ndim == 2 and not list(module.buffers()):
        weight, bias = parameters["weight"].detach(), parameters["bias"].detach()
        if len(bias) == weight.shape[1] and _computes_transposed(module, weight, bias):
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


def sample_rows(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows [SAMPLE_ROWS, width] of numbers around 1, the same for the same width."""
    generator = torch.Generator().manual_seed(width)
    return torch.randn(SAMPLE_ROWS, width, generator=generator).to(device, dtype)


def are_close(one: object, other: Tensor) -> bool:
    """Return whether two results differ by no more than roundings of their dtype."""
    if not isinstance(one, Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    scale, eps = other.abs().max().double(), torch.finfo(other.dtype).eps
    bound = 4 * eps * other.double().abs() + max(eps / 16, 1e-6) * scale
    return bool(((one.double() - other.double()).abs() <= bound).all())
