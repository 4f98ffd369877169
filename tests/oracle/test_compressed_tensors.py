"""Quantized folders in float64: logits of transformers' model with the numbers that the formula of the form gives."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.model.architectures.model_building import load_model
from support_batches import teacher_forced_logits
from support_compressed import FORMS, write_quantized
from support_models import VOCAB_SIZE

CPU = torch.device("cpu")


def assert_equal_logits(folder: Path, model: Any) -> None:
    rng = random.Random(3)
    batch = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70)]
    loaded, _ = load_model(folder, dtype="float64", device=CPU, max_model_len=None)
    found = teacher_forced_logits(loaded, batch, torch.float64, max_chunk=16)
    for logits, ids in zip(found, batch, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.share(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["llama", "llama-bias", "qwen3"])
def test_logits_are_those_of_the_numbers_in_the_files(kind: str, form: str, tmp_path: Path) -> None:
    assert_equal_logits(tmp_path, write_quantized(tmp_path, kind, FORMS[form]))
