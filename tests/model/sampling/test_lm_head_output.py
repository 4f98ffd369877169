"""LMHeadOutput: the largest logit of each row, with and without masks, and the kept logits."""

import numpy as np
import pytest
import torch

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.sampling import truncated_sampling
from chairlift.model.sampling.lm_head_output import LogitsRequest, compute_lm_head_output
from support_sampling import masks_of

VOCAB = 101


def logits_of(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_masks_it_is_the_largest_and_what_is_kept(dtype: torch.dtype) -> None:
    raw = logits_of(5, dtype)
    kept = np.array([True, False, False, True, False])
    found = compute_lm_head_output(raw.clone(), LogitsRequest(kept))
    assert found.max_logits.tolist() == raw.amax(-1).tolist()
    assert found.argmax_ids.tolist() == [int((row == row.max()).nonzero()[0]) for row in raw]
    assert torch.equal(found.logits, raw[[0, 3]].to(found.logits.dtype))
    assert found.logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert len(found.masked_max_logits) == len(found.masked_argmax_ids) == 0


@pytest.mark.parametrize("elements", [1 << 22, VOCAB, 2 * VOCAB])
def test_a_mask_bans_from_what_is_kept_and_from_the_largest_that_is_allowed(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncated_sampling, "CHUNK_ELEMENTS", elements)
    raw = logits_of(6)
    allowed = {1: {4, 60}, 2: set(range(VOCAB)), 4: {100}, 5: {7, 8, 9}}
    kept = np.array([True, True, False, True, False, True])
    found = compute_lm_head_output(raw.clone(), LogitsRequest(kept, masks_of(VOCAB, allowed)))
    assert found.max_logits.tolist() == raw.amax(-1).tolist() and found.argmax_ids.tolist() == raw.argmax(-1).tolist()
    for place, (row, tokens) in enumerate(allowed.items()):
        best = max(sorted(tokens), key=lambda token, row=row: float(raw[row, token]))
        assert found.masked_argmax_ids[place] == best and found.masked_max_logits[place] == raw[row, best]
    for logits, row in zip(found.logits, np.flatnonzero(kept).tolist(), strict=True):
        for token in range(VOCAB):
            assert logits[token] == (raw[row, token] if token in allowed.get(row, range(VOCAB)) else -torch.inf)


def test_of_nothing_that_is_allowed_the_largest_is_nothing_and_its_id_exists() -> None:
    found = compute_lm_head_output(logits_of(2), LogitsRequest(np.zeros(2, bool), masks_of(VOCAB, {0: set(), 1: {5}})))
    assert found.masked_max_logits[0] == -torch.inf and 0 <= found.masked_argmax_ids[0] < VOCAB
    assert found.masked_argmax_ids[1] == 5 and len(found.logits) == 0


def test_tokens_behind_a_short_mask_are_banned() -> None:
    raw = torch.arange(float(VOCAB))[None]
    found = compute_lm_head_output(
        raw, LogitsRequest(np.ones(1, bool), TokenMasks(np.zeros(1, np.int32), np.full((1, 2), -1, np.int32)))
    )
    assert found.masked_argmax_ids.tolist() == [63] and found.argmax_ids.tolist() == [100]
    assert found.logits[0].isfinite().sum() == 64


def test_a_row_that_is_no_number_says_so() -> None:
    raw = logits_of(3)
    raw[1, 9] = torch.nan
    found = compute_lm_head_output(raw, LogitsRequest(np.zeros(3, bool)))
    assert np.isnan(found.max_logits).tolist() == [False, True, False]
