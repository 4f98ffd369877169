"""assert_equal_logits: a folder's model in float64 has the logits of transformers' model with the same numbers."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.model.loading.model_building import load_model
from support_batches import teacher_forced_logits
from support_models import VOCAB_SIZE

_rng = random.Random(3)
_BATCH = [[_rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70)]


def assert_equal_logits(folder: Path, model: Any) -> None:
    """Load a folder in any format, and compare its logits of three sequences with those of a model in float64."""
    for logits, ids in zip(_logits(folder), _BATCH, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


def assert_logits_of_saved(folder: Path, model: Any, saved: Path) -> None:
    """Do the same with a model that computes some steps in float32: its numbers are saved and loaded in float64.

    The model's own logits are compared as far as float32 goes.
    """
    model.save_pretrained(saved)
    for logits, expected, ids in zip(_logits(folder), _logits(saved), _BATCH, strict=True):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        with torch.inference_mode():
            assert (model(torch.tensor([ids])).logits[0] - logits).abs().max() < 1e-3 * logits.std()


def _logits(folder: Path) -> Sequence[Tensor]:
    loaded, _ = load_model(folder, dtype="float64", device=torch.device("cpu"), max_model_len=None)
    return teacher_forced_logits(loaded, _BATCH, torch.float64, max_chunk=16)
