"""NativeSamplingOps: sampling, top-k and logsumexp in one or two passes over each row, on the kernels' threads.

A row needs only a few blocks of memory. Its weights are summed as they are computed, and the block of the sampled token
is computed again. Top-k and top-p sort only the logits that the block maxima leave undecided.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chairlift.model.kernels.cpu.kernel_structs import TruncationStruct
from chairlift.model.kernels.cpu.library import load
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import Float64, Rows, TruncationParams


class NativeSamplingOps:
    """SamplingOps for float32 logits on the CPU. TorchSamplingOps handles other logits, and truncation by entropy.

    Sums are float64, by blocks of ids instead of one id after another. So a token differs from torch's if a sum is
    within rounding of a threshold (the random number, top_p). A row's token still depends on that row alone.
    """

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None:
        self._pool = pool
        self._native = load()
        self._instruction_set = instruction_set.encode()
        self._torch = TorchSamplingOps()

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        """See SamplingOps."""
        is_native = ~rules.by_entropy
        if not _fits(logits) or not is_native.any():
            return self._torch.sample_tokens(logits, rules, numbers)
        if is_native.all():
            return self._sample(logits, rules, numbers)
        tokens = np.empty(len(numbers), np.int64)
        for rows, sample_tokens in (
            (np.flatnonzero(is_native), self._sample),
            (np.flatnonzero(~is_native), self._torch.sample_tokens),
        ):
            tokens[rows] = sample_tokens(logits[torch.from_numpy(rows)], rules.take(rows), numbers[rows])
        return tokens

    def _sample(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        tokens = np.empty(len(numbers), np.int64)
        columns = (rules.temperature, rules.top_p, rules.min_p, numbers, rules.top_k)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        params = (TruncationStruct * len(numbers))(*(TruncationStruct(*values) for values in rows))
        self._run("sample", logits, ctypes.addressof(params), tokens.ctypes.data)
        return tokens

    def top_k_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See SamplingOps."""
        if not _fits(logits):
            return self._torch.top_k_tokens(logits, count)
        shape = len(logits), min(count, logits.shape[1])
        values = torch.empty(shape, dtype=torch.float32, device="cpu")
        ids = torch.empty(shape, dtype=torch.int64, device="cpu")
        if values.numel():
            self._run("top_k", logits, shape[1], values.data_ptr(), ids.data_ptr())
        return values, ids

    def logsumexp(self, logits: Tensor, max_logits: Tensor) -> Tensor:
        """See SamplingOps."""
        if not _fits(logits):
            return self._torch.logsumexp(logits, max_logits)
        sums = torch.empty((len(logits), 1), dtype=torch.float64, device="cpu")
        self._run("logsumexp", logits, sums.data_ptr())
        return sums

    def _run(self, name: str, logits: Tensor, *arguments: Any) -> None:
        """Call a function of the library. Raises MemoryError."""
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        code = getattr(self._native, name)(
            self._pool.handle, self._instruction_set, logits.data_ptr(), *logits.shape, logits.stride(0), *arguments
        )
        if code:
            raise MemoryError(f"the native kernels failed in {name} (code {code})")


def _fits(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.numel() > 0
