"""Logprobs of chosen tokens and of the likeliest, in float64 whatever comes in."""

import numpy as np
import pytest
import torch

from chairlift.model.sampling.logprobs import token_logprobs
from chairlift.model.sampling.sampling_ops import TorchSamplingOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_a_softmax_in_float64(dtype: torch.dtype) -> None:
    raw = (torch.randn(5, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4).to(dtype)
    tokens, counts = np.array([3, 399, 0, 7, 7]), np.array([0, 1, 5, 20, 400])
    right = raw.double().log_softmax(-1)
    for row, entry in enumerate(token_logprobs(raw, tokens, counts, TorchSamplingOps())):
        assert entry.token_id == tokens[row]
        assert entry.logprob == pytest.approx(float(right[row, tokens[row]]), abs=1e-12)
        assert len(entry.top) == counts[row]
        assert [token for token, _ in entry.top] == right[row].argsort(descending=True)[: counts[row]].tolist()


def test_large_logits_neither_overflow_nor_lose_the_sum() -> None:
    raw = torch.tensor([[3e38, 3e38, -3e38]])
    entry = token_logprobs(raw, np.array([1]), np.array([2]), TorchSamplingOps())[0]
    assert entry.logprob == pytest.approx(-np.log(2)) and entry.top[0][0] == 0
