"""SamplingOps: the operations over rows of logits [N, V] that the sampler and prompt logprobs use."""

from typing import Protocol

from torch import Tensor

from chairlift.model.sampling import truncated_sampling
from chairlift.model.sampling.truncated_sampling import Float64, Rows, TruncationParams


class SamplingOps(Protocol):
    """One implementation. Logits are [N, V] of float32 or float64, no NaN, the largest of each row finite."""

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        """Sample one token id, int64 [N], for each row; see truncated_sampling.sample_tokens."""
        ...

    def top_k_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return values and ids, [N, count], of the largest logits; among equal logits the lower id first."""
        ...

    def logsumexp(self, logits: Tensor, max_logits: Tensor) -> Tensor:
        """Return the logarithm of the sum of e**(logit - max_logit), float64 [N, 1]; `max_logits` is [N, 1]."""
        ...


class TorchSamplingOps:
    """SamplingOps in torch, on any device."""

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        """See SamplingOps."""
        return truncated_sampling.sample_tokens(logits, rules, numbers)

    def top_k_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See SamplingOps."""
        return truncated_sampling.top_k_tokens(logits, count)

    def logsumexp(self, logits: Tensor, max_logits: Tensor) -> Tensor:
        """See SamplingOps; sums by ascending id."""
        return (logits.double() - max_logits.double()).exp_().cumsum(-1)[:, -1:].log()
