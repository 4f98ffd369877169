"""assert_equal_logits: a folder's model in float64 has the logits of transformers' model with the same numbers."""

import random
from pathlib import Path
from typing import Any

import torch

from chairlift.model.loading.model_building import load_model
from support_batches import teacher_forced_logits
from support_models import VOCAB_SIZE


def assert_equal_logits(folder: Path, model: Any) -> None:
    """Load a folder in any format, and compare its logits of three sequences with those of a model in float64."""
    rng = random.Random(3)
    batch = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70)]
    loaded, _ = load_model(folder, dtype="float64", device=torch.device("cpu"), max_model_len=None)
    found = teacher_forced_logits(loaded, batch, torch.float64, max_chunk=16)
    for logits, ids in zip(found, batch, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
