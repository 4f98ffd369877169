"""TorchSamplingOps on rows of logits, and a sampler with other sampling ops."""

import numpy as np
import torch
from torch import Tensor

from chairlift.model.sampling.sampler import Sampler
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import Float64, Rows, TruncationParams, sample_tokens, top_k_tokens
from support_sampling import head_of, params, sequence


def test_it_is_what_choice_says_and_sums_in_float64() -> None:
    logits = torch.randn(4, 90, generator=torch.Generator().manual_seed(1)) * 5
    rules, numbers = TruncationParams.neutral(4), np.array([0.1, 0.4, 0.7, 0.99])
    sampling_ops = TorchSamplingOps()
    assert sampling_ops.sample_tokens(logits, rules, numbers).tolist() == sample_tokens(logits, rules, numbers).tolist()
    assert sampling_ops.top_k_tokens(logits, 5)[1].equal(top_k_tokens(logits, 5)[1])
    max_logits = logits.amax(-1, keepdim=True)
    exact = np.log(np.exp(logits.double().numpy() - max_logits.double().numpy()).sum(-1, keepdims=True))
    np.testing.assert_allclose(sampling_ops.logsumexp(logits, max_logits).numpy(), exact, rtol=1e-14)


class Counted(TorchSamplingOps):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        self.calls.append("sample_tokens")
        return super().sample_tokens(logits, rules, numbers)

    def logsumexp(self, logits: Tensor, max_logits: Tensor) -> Tensor:
        self.calls.append("logsumexp")
        return super().logsumexp(logits, max_logits)


def test_a_sampler_uses_the_given_sampling_ops() -> None:
    sampling_ops = Counted()
    sampler = Sampler(2, 40, sampling_ops=sampling_ops)
    sampler.add_sequence(sequence(0, params(temperature=0.8, logprobs=2)))
    sampler.sample(head_of(torch.randn(1, 40, generator=torch.Generator().manual_seed(2))), np.array([0]))
    assert sampling_ops.calls == ["sample_tokens", "logsumexp"]
