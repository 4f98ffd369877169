"""Torch's way with rows of logits, by itself and with a sampler that is given another."""

import numpy as np
import torch
from torch import Tensor

from chairlift.model.sampling.sampler import Sampler
from chairlift.model.sampling.sampling_ops import TorchDrawing
from chairlift.model.sampling.truncated_sampling import Float64, Rows, Truncation, choose, likeliest
from support_sampling import head_of, params, sequence


def test_it_is_what_choice_says_and_sums_in_float64() -> None:
    logits = torch.randn(4, 90, generator=torch.Generator().manual_seed(1)) * 5
    rules, numbers = Truncation.neutral(4), np.array([0.1, 0.4, 0.7, 0.99])
    drawing = TorchDrawing()
    assert drawing.choose(logits, rules, numbers).tolist() == choose(logits, rules, numbers).tolist()
    assert drawing.likeliest(logits, 5)[1].equal(likeliest(logits, 5)[1])
    peaks = logits.amax(-1, keepdim=True)
    exact = np.log(np.exp(logits.double().numpy() - peaks.double().numpy()).sum(-1, keepdims=True))
    np.testing.assert_allclose(drawing.log_sums(logits, peaks).numpy(), exact, rtol=1e-14)


class Counted(TorchDrawing):
    """Knows what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def choose(self, logits: Tensor, rules: Truncation, numbers: Float64) -> Rows:
        self.asked.append("choose")
        return super().choose(logits, rules, numbers)

    def log_sums(self, logits: Tensor, peaks: Tensor) -> Tensor:
        self.asked.append("log_sums")
        return super().log_sums(logits, peaks)


def test_a_sampler_draws_and_scores_by_what_it_was_given() -> None:
    drawing = Counted()
    sampler = Sampler(2, 40, drawing=drawing)
    sampler.admit(sequence(0, params(temperature=0.8, logprobs=2)))
    sampler.sample(head_of(torch.randn(1, 40, generator=torch.Generator().manual_seed(2))), np.array([0]))
    assert drawing.asked == ["choose", "log_sums"]
