"""Drawing: who works through rows of logits as long as the vocabulary, for the sampler and for scores."""

from typing import Protocol

from torch import Tensor

from chairlift.model.sampling import truncated_sampling
from chairlift.model.sampling.truncated_sampling import Float64, Rows, Truncation


class Drawing(Protocol):
    """One way to do it. Logits are [N, V] of float32 or float64, no NaN, the largest of each row finite."""

    def choose(self, logits: Tensor, rules: Truncation, numbers: Float64) -> Rows:
        """Draw one token id, int64 [N], for each row; see choice.choose."""
        ...

    def likeliest(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return values and ids, [N, count], of the largest logits; of equals the lower id first."""
        ...

    def log_sums(self, logits: Tensor, peaks: Tensor) -> Tensor:
        """Return the logarithm of the sum of e**(logit - peak), float64 [N, 1]; `peaks` [N, 1] are the largest."""
        ...


class TorchDrawing:
    """In torch operations, on any device."""

    def choose(self, logits: Tensor, rules: Truncation, numbers: Float64) -> Rows:
        """See Drawing."""
        return truncated_sampling.choose(logits, rules, numbers)

    def likeliest(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See Drawing."""
        return truncated_sampling.likeliest(logits, count)

    def log_sums(self, logits: Tensor, peaks: Tensor) -> Tensor:
        """See Drawing; summed by ascending id."""
        return (logits.double() - peaks.double()).exp_().cumsum(-1)[:, -1:].log()
