"""The kept set and the sampled token of every truncation rule, against transformers and against numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chairlift.model.sampling import truncated_sampling
from chairlift.model.sampling.truncated_sampling import TruncationParams, argmax, sample_tokens, top_k_tokens
from support_sampling import params, probabilities, sequence, token_of
from support_shares import FULL

CASES = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_k of one": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 10**6},
    "a wide top_k": {"top_k": 1100},
    "top_p": {"top_p": 0.6001},
    "a tiny top_p": {"top_p": 1e-9},
    "a top_p of nearly all": {"top_p": 0.9991},
    "min_p": {"min_p": 0.1},
    "a min_p of one": {"min_p": 1.0},
    "top_k and min_p": {"top_k": 30, "min_p": 0.3},
    "all": {"temperature": 1.7, "top_k": 40, "top_p": 0.9003, "min_p": 0.02},
    "typical_p": {"typical_p": 0.5003},
    "a tiny typical_p": {"typical_p": 1e-9},
    "epsilon_cutoff": {"epsilon_cutoff": 0.011},
    "an epsilon_cutoff of one": {"epsilon_cutoff": 1.0},
    "eta_cutoff": {"eta_cutoff": 0.013},
    "typical_p behind top_k": {"top_k": 9, "typical_p": 0.7001},
    "everything": {
        "temperature": 1.4,
        "top_k": 40,
        "top_p": 0.9003,
        "min_p": 0.01,
        "typical_p": 0.8,
        "epsilon_cutoff": 0.004,
        "eta_cutoff": 0.02,
    },
}


def rules_for(count: int, **chosen: float) -> TruncationParams:
    made, rules = params(**chosen), TruncationParams.neutral(count)
    for row in range(count):
        rules.set(row, made)
    return rules


def rules_of(temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray) -> TruncationParams:
    neutral = TruncationParams.neutral(len(temperature))
    return replace(neutral, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


NUMBERS = 1500 if FULL else 400


def sweep(row: torch.Tensor, count: int = NUMBERS, **chosen: float) -> tuple[np.ndarray, np.ndarray]:
    numbers = (np.arange(count) + 0.5) / count
    return numbers, sample_tokens(row.expand(count, -1), rules_for(count, **chosen), numbers)


@pytest.mark.share(19)
@pytest.mark.parametrize("vocab_size", [7, 50, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_every_number_gives_the_token_of_the_numpy_model(name: str, dtype: torch.dtype, vocab_size: int) -> None:
    row = torch.randn(vocab_size, dtype=dtype, generator=torch.Generator().manual_seed(vocab_size)) * 3
    numbers, tokens = sweep(row, **CASES[name])
    likely = probabilities(row.numpy(), sequence(0, params(**CASES[name])))
    assert tokens.tolist() == [token_of(likely, number) for number in numbers]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CASES)
def test_ties_are_settled_the_same_way_wherever_they_fall(name: str) -> None:
    for vocab_size, levels, seed in ((40, 3, 0), (40, 8, 1), (1500, 4, 2), (1500, 60, 3), (1500, 1, 4)):
        generator = torch.Generator().manual_seed(seed)
        row = torch.randint(levels, (vocab_size,), generator=generator).double()
        numbers, tokens = sweep(row, **CASES[name])
        likely = probabilities(row.numpy(), sequence(0, params(**CASES[name])))
        assert tokens.tolist() == [token_of(likely, number) for number in numbers]


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", range(20 if FULL else 6))
def test_the_kept_set_is_that_of_transformers(seed: int) -> None:
    from transformers import (
        EpsilonLogitsWarper,
        EtaLogitsWarper,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    )

    draw = np.random.default_rng(seed)
    chosen = {"temperature": draw.uniform(0.3, 2), "top_k": int(draw.integers(1, 60))}
    chosen |= {"top_p": draw.uniform(0.1, 1), "min_p": draw.uniform(0, 0.3), "typical_p": draw.uniform(0.3, 0.99)}
    chosen |= {"epsilon_cutoff": draw.uniform(1e-4, 0.05), "eta_cutoff": draw.uniform(1e-4, 0.05)}
    row = torch.from_numpy(draw.normal(size=700) * 2)
    scores = row[None]
    warpers = (
        TemperatureLogitsWarper(chosen["temperature"]), TopKLogitsWarper(chosen["top_k"]),
        TopPLogitsWarper(chosen["top_p"]), MinPLogitsWarper(chosen["min_p"]), TypicalLogitsWarper(chosen["typical_p"]),
        EpsilonLogitsWarper(chosen["epsilon_cutoff"]), EtaLogitsWarper(chosen["eta_cutoff"], device="cpu"),
    )  # fmt: skip
    for warper in warpers:
        scores = warper(torch.zeros(1, 1, dtype=torch.long), scores)
    likely = scores[0].softmax(-1).numpy()
    numbers = np.append((np.arange(3000) + 0.5) / 3000, np.clip(np.cumsum(likely)[likely > 0] - 1e-9, 0, 1 - 1e-9))
    tokens = sample_tokens(row.expand(len(numbers), -1), rules_for(len(numbers), **chosen), numbers)
    assert set(tokens.tolist()) == set(np.flatnonzero(likely).tolist())


def test_the_ends_of_the_unit_interval_give_kept_tokens() -> None:
    row = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf], dtype=torch.float64)
    numbers = np.array([0.0, 1 - 2.0**-53])
    for chosen in ({}, {"top_k": 3}, {"top_p": 0.99999}, {"min_p": 0.01}):
        assert sample_tokens(row.expand(2, -1), rules_for(2, **chosen), numbers).tolist() == [1, 3]


def test_rows_with_different_rules_share_a_batch_and_keep_their_tokens() -> None:
    draw = np.random.default_rng(3)
    logits = torch.from_numpy(np.round(draw.normal(size=(60, 1999)) * 3, 1))
    rules = TruncationParams(
        draw.uniform(0.2, 2, 60), draw.choice([0, 1, 7, 50, 600, 1500, 5000], 60),
        draw.choice([1.0, 0.3, 0.95, 0.9999], 60), draw.choice([0.0, 0.05], 60), draw.choice([1.0, 0.5, 0.9], 60),
        draw.choice([0.0, 0.003], 60), draw.choice([0.0, 0.003], 60),
    )  # fmt: skip
    numbers = draw.uniform(size=60)
    together = sample_tokens(logits, rules, numbers)
    for row in range(60):
        here = np.array([row])
        assert sample_tokens(logits[row : row + 1].clone(), rules.take(here), numbers[here])[0] == together[row]


def test_the_narrow_way_and_the_full_sort_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(4)
    logits = torch.from_numpy(np.round(draw.normal(size=(200, 1500)), 2)).float()
    numbers = draw.uniform(size=200)
    rules = rules_of(np.ones(200), draw.choice([0, 20], 200), np.full(200, 0.9), np.zeros(200))
    narrow = sample_tokens(logits, rules, numbers)
    monkeypatch.setattr(
        truncated_sampling, "_leading", lambda x, width: tuple(x.sort(dim=-1, descending=True, stable=True))
    )
    assert sample_tokens(logits, rules, numbers).tolist() == narrow.tolist()


def test_cutting_the_rows_into_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(30, 100, generator=torch.Generator().manual_seed(0))
    numbers = np.random.default_rng(0).uniform(size=30)
    rules = rules_of(np.ones(30), np.tile([0, 3, 9], 10), np.tile([1.0, 0.5], 15), np.zeros(30))
    whole = sample_tokens(logits, rules, numbers)
    monkeypatch.setattr(truncated_sampling, "CHUNK_ELEMENTS", 250)
    assert sample_tokens(logits, rules, numbers).tolist() == whole.tolist()


@pytest.mark.parametrize("levels", [1, 3, 50, 10**6])
def test_the_likeliest_are_in_order_and_of_equals_the_lower_id_is_first(levels: int) -> None:
    logits = torch.randint(levels, (8, 900), generator=torch.Generator().manual_seed(levels)).float()
    values, ids = top_k_tokens(logits, 20)
    for row in range(8):
        right = sorted(range(900), key=lambda token: (-float(logits[row, token]), token))[:20]
        assert ids[row].tolist() == right
        assert values[row].tolist() == logits[row, right].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_leading_one_is_the_first_of_equals_and_nan_leads(dtype: torch.dtype) -> None:
    drawn = torch.randint(0, 9, (40, 500), generator=torch.Generator().manual_seed(1)).to(dtype)
    drawn[3] = -torch.inf
    drawn[4, 77] = torch.nan
    drawn[5, 78] = torch.inf
    for logits in (drawn, drawn[:, 3:], drawn[::2]):
        peaks, ids = argmax(logits)
        for row, (peak, token) in enumerate(zip(peaks.tolist(), ids.tolist(), strict=True)):
            expected = logits[row].tolist()
            if any(np.isnan(expected)):
                assert np.isnan(peak) and np.isnan(expected[token])
            else:
                assert peak == max(expected) and token == expected.index(peak)
