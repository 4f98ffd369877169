"""hf_logits, furthest: the logits of a model of transformers or PEFT, and how far others are from them."""

from typing import Any

import torch


def hf_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the logits [length, V] of a sequence that the model computes alone and at once."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
    return logits


def furthest(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest logit of its position."""
    return float(((found - expected).abs().amax(-1) / expected.abs().amax(-1)).max())
