"""PackedLinear, FusedRMSNorm, FastNorm: the modules that replace those of a model."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

Multiply = Callable[[Tensor], Tensor]
"""Maps rows [..., I] to [..., O]."""


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

    def factors(self) -> Tensor:
        """Return the factors [H] in float32."""
        weight = self.weight.detach().float()
        return 1 + weight if self._offset else weight

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


class FastNorm(nn.Module):
    """An RMS norm that a function computes, over a copy of the weight."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., H]."""
        return self.norm(x)
