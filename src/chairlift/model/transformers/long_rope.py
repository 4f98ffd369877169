"""use_long_factors: makes the RoPE "longrope" of a model use its long factors for sequences of any length.

transformers chooses the factors by the largest position of a pass. The passes of this engine hold several sequences,
and keys stay in the cache, so all sequences must have the same factors. One more position, whose result is dropped,
makes the choice.
Source: transformers 5.23 modeling_rope_utils.py, models/phi3, models/phimoe.
"""

from typing import Any

import torch
from torch import Tensor, nn

LONG_ROPE = "longrope"


def use_long_factors(model: nn.Module, position: int) -> int:
    """Make every RoPE "longrope" in a model rotate as in a sequence that reaches `position`.

    Returns the number of modules that were changed.
    """
    modules = [module for module in model.modules() if _is_long_rope(module)]
    for module in modules:
        module.register_forward_pre_hook(_AddPosition(position), with_kwargs=True)
        module.register_forward_hook(_drop_last)
    return len(modules)


def _is_long_rope(module: nn.Module) -> bool:
    kind: Any = getattr(module, "rope_type", None)
    return LONG_ROPE in kind.values() if isinstance(kind, dict) else kind == LONG_ROPE


class _AddPosition:
    """A hook that appends one position to those of a rotary module, forward(x, position_ids)."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __call__(
        self, module: nn.Module, values: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "position_ids" in named:
            return values, named | {"position_ids": self._extended(named["position_ids"])}
        first, positions, *rest = values
        return (first, self._extended(positions), *rest), named

    def _extended(self, positions: Tensor) -> Tensor:
        return torch.cat([positions, torch.full_like(positions[..., :1], self._position)], dim=-1)


def _drop_last(module: nn.Module, values: Any, rotation: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return cosine and sine [..., T + 1, D] without the last position."""
    return tuple(part[..., :-1, :] for part in rotation)
