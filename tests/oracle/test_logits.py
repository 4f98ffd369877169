"""Logits at every position against transformers (attention "sdpa"), under teacher forcing over the paged cache.

transformers computes each sequence alone and at once; here several run together in random chunks over scattered
blocks, poisoned with NaN wherever nothing was written or a window has passed.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.model.loading.model_building import load_model
from support_batches import teacher_forced_logits
from support_logits import furthest, hf_logits
from support_models import HYBRIDS, VARIANTS, VOCAB_SIZE, save_tiny, tiny_hf_model
from support_shares import each_value

CPU = torch.device("cpu")
CHUNKINGS = ((1, 1), (16, 7), (37, 64), (32, 10_000))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_tiny(kind, tmp_path_factory.mktemp(kind), seed=5) for kind in VARIANTS}


def sequences(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def ours(folder: Path, dtype: str, batch: list[list[int]], block_size: int, chunk: int, seed: int = 0) -> list[Any]:
    model, config = load_model(folder, dtype=dtype, device=CPU, max_model_len=None)
    assert config.dtype == dtype
    kind = getattr(torch, dtype)
    return teacher_forced_logits(model, batch, kind, block_size=block_size, max_chunk=chunk, seed=seed)


@pytest.mark.share(2)
@pytest.mark.parametrize(("chunking", "kind"), each_value(CHUNKINGS, VARIANTS))
def test_float64_logits_equal_transformers_at_every_position(
    folders: dict[str, Path], kind: str, chunking: tuple[int, int]
) -> None:
    block_size, chunk = chunking
    lengths = (70, 33, 1, 21) if chunk == 1 else (150, 67, 1, 21)
    batch = sequences(block_size, lengths)
    model = tiny_hf_model(kind, 5)
    window = getattr(model.config, "sliding_window", None)
    assert window is None or max(lengths) > 2 * window
    for found, tokens in zip(ours(folders[kind], "float64", batch, block_size, chunk), batch, strict=True):
        # transformers computes recurrences and the norms around them in float32 in a float64 model, too.
        assert furthest(found, hf_logits(model, tokens)) < (1e-4 if kind in HYBRIDS else 1e-6)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", VARIANTS)
def test_float32_logits_equal_transformers_at_every_position(folders: dict[str, Path], kind: str) -> None:
    batch = sequences(2, (300, 67, 20))
    model = tiny_hf_model(kind, 5, torch.float32)
    for found, tokens in zip(ours(folders[kind], "float32", batch, 16, 64), batch, strict=True):
        assert furthest(found, hf_logits(model, tokens)) < (2e-4 if kind in HYBRIDS else 1e-5)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", VARIANTS)
def test_bfloat16_is_no_further_from_float32_than_transformers(folders: dict[str, Path], kind: str) -> None:
    batch = sequences(3, (200, 150, 120, 67))
    exact, rounded = tiny_hf_model(kind, 5, torch.float32), tiny_hf_model(kind, 5, torch.bfloat16)
    found = ours(folders[kind], "bfloat16", batch, 16, 64)
    errors, oracle_errors = [], []
    for mine, tokens in zip(found, batch, strict=True):
        expected = hf_logits(exact, tokens)
        errors.append((mine.float() - expected).pow(2).mean())
        oracle_errors.append((hf_logits(rounded, tokens).float() - expected).pow(2).mean())
    error, oracle_error = (torch.stack(each).mean().sqrt() for each in (errors, oracle_errors))
    assert oracle_error > 0
    assert error <= 1.25 * oracle_error


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_sequence_has_the_same_logits_in_any_company(folders: dict[str, Path], seed: int) -> None:
    tokens = sequences(9, (90,))[0]
    alone = ours(folders["gemma3"], "float64", [tokens], 16, 10_000)[0]
    batched = ours(folders["gemma3"], "float64", [tokens, *sequences(seed, (40, 60, 8))], 5, 30, seed)[0]
    assert furthest(batched, alone) < 1e-6


def test_positions_past_the_pretraining_length_are_scaled_as_transformers_does(folders: dict[str, Path]) -> None:
    batch = sequences(4, (700,))
    for kind in ("llama-llama3", "llama-yarn", "llama-linear"):
        found = ours(folders[kind], "float64", batch, 64, 10_000)[0]
        assert furthest(found, hf_logits(tiny_hf_model(kind, 5), batch[0])) < 1e-6
