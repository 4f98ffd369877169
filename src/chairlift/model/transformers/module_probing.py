"""sample_rows, are_close, takes_one_tensor: find out what a module computes, and whether two results agree."""

import inspect

import torch
from torch import Tensor, nn

SAMPLE_ROWS = 4


def sample_rows(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows [SAMPLE_ROWS, width] of numbers around 1, the same for the same width."""
    generator = torch.Generator().manual_seed(width)
    return torch.randn(SAMPLE_ROWS, width, generator=generator).to(device, dtype)


def are_close(one: object, other: Tensor) -> bool:
    """Return whether two results are finite and differ by no more than roundings of their dtype."""
    if not isinstance(one, Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not bool(other.isfinite().all()):
        return False
    scale, eps = other.abs().max().double(), torch.finfo(other.dtype).eps
    bound = 4 * eps * other.double().abs() + max(eps / 16, 1e-6) * scale
    return bool(((one.double() - other.double()).abs() <= bound).all())


def takes_one_tensor(module: nn.Module) -> bool:
    """Return whether a module's forward has one parameter.

    A second one, such as the gate of a gated norm, may change the result, and sample rows do not show it.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return False
    return [each.kind for each in parameters] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]
