"""use_long_factors: the long factors of RoPE "longrope" for all sequences, whatever their length.

transformers chooses the factors of a pass by the largest position in it. In a batch that would be the position of
another sequence, and within a sequence the choice would change behind keys that are in the cache already. Source:
transformers 5.23 modeling_rope_utils.py, dynamic_rope_update.
"""

from typing import Any

import torch
from torch import Tensor, nn

LONG_ROPE = "longrope"


class LongRope(nn.Module):
    """A rotary embedding that always sees the last position of a long sequence."""

    def __init__(self, rope: nn.Module, length: int) -> None:
        super().__init__()
        self.rope = rope
        self.last_position = length - 1

    def forward(self, x: Tensor, position_ids: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Return cosines and sines at position_ids [B, T]."""
        last = position_ids.new_full((len(position_ids), 1), self.last_position)
        cos, sin = self.rope(x, torch.cat([position_ids, last], 1), *options, **named)
        return cos[:, :-1], sin[:, :-1]


def use_long_factors(model: nn.Module, length: int) -> int:
    """Make all embeddings of RoPE "longrope" use the factors of `length` tokens; returns how many there are."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _has_long_rope(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, LongRope(child, length))
    return len(found)


def _has_long_rope(module: nn.Module) -> bool:
    kind = getattr(module, "rope_type", None)
    return kind == LONG_ROPE or (isinstance(kind, dict) and LONG_ROPE in kind.values())
