"""load_native, relative_error: a folder or GGUF file by the native kernels, and its logits' distance from float64."""

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.model_loading import load
from support_batches import teacher_forced_logits
from support_models import VOCAB_SIZE
from support_native import need_native

_rng = random.Random(3)
BATCH = [[_rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70)]


def load_native(model: Path, **options: Any) -> LoadedModel:
    """Load a model in float32, unless the options name another dtype."""
    need_native()
    folder = str(gguf_folder(model) if model.is_file() else model)
    return load(RunnerConfig(**{"model": folder, "kernels": "native", "device": "cpu", "dtype": "float32", **options}))


def logits(loaded: LoadedModel, batch: list[list[int]], max_chunk: int = 16) -> list[Tensor]:
    """Return the logits of sequences, [T, V] each."""
    assert loaded.attention is not None
    dtype, backend = getattr(torch, loaded.config.dtype), loaded.attention()
    return teacher_forced_logits(loaded.model, batch, dtype, max_chunk=max_chunk, backend=backend)


def relative_error(loaded: LoadedModel, model: Any) -> float:
    """Return the largest error of a sequence's logits, relative to their deviation: sqrt(mean of squares)."""
    errors = []
    for found, ids in zip(logits(loaded, BATCH), BATCH, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        errors.append(float((found - expected).pow(2).mean().sqrt() / expected.std()))
    return max(errors)
