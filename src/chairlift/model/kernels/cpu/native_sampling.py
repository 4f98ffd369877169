"""NativeDrawing: draws and likeliest tokens in one or two passes over each row, row by row on the kernels' threads.

A row takes no memory but a few blocks: weights are summed as they are made, and made again where the draw fell. What
needs the order of tokens looks only at those that the largest of each block leave in question.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chairlift.model.kernels.cpu.library import TruncationStruct, load
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import Float64, Rows, TruncationParams


class NativeSamplingOps:
    """A Drawing for float32 on the CPU; other logits, and rules that look at the whole distribution, are torch's.

    Sums are in float64, by blocks of ids instead of one after another: a draw differs from torch's where a sum lies
    within the last places of a border (of the number, of top_p), and a row's token still depends on that row alone.
    """

    def __init__(self, pool: ThreadPool, instruction_set: str) -> None:
        self._pool = pool
        self._native = load()
        self._set = instruction_set.encode()
        self._torch = TorchSamplingOps()

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        """See Drawing."""
        ours = ~rules.by_entropy
        if not _fits(logits) or not ours.any():
            return self._torch.sample_tokens(logits, rules, numbers)
        if ours.all():
            return self._draw(logits, rules, numbers)
        tokens = np.empty(len(numbers), np.int64)
        for rows, sample_tokens in (
            (np.flatnonzero(ours), self._draw),
            (np.flatnonzero(~ours), self._torch.sample_tokens),
        ):
            tokens[rows] = sample_tokens(logits[torch.from_numpy(rows)], rules.take(rows), numbers[rows])
        return tokens

    def _draw(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        tokens = np.empty(len(numbers), np.int64)
        columns = (rules.temperature, rules.top_p, rules.min_p, numbers, rules.top_k)
        each = zip(*(column.tolist() for column in columns), strict=True)
        asked = (TruncationStruct * len(numbers))(*(TruncationStruct(*values) for values in each))
        self._run("draw", logits, ctypes.addressof(asked), tokens.ctypes.data)
        return tokens

    def top_k_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See Drawing."""
        if not _fits(logits):
            return self._torch.top_k_tokens(logits, count)
        shape = len(logits), min(count, logits.shape[1])
        values = torch.empty(shape, dtype=torch.float32, device="cpu")
        ids = torch.empty(shape, dtype=torch.int64, device="cpu")
        if values.numel():
            self._run("likeliest", logits, shape[1], values.data_ptr(), ids.data_ptr())
        return values, ids

    def logsumexp(self, logits: Tensor, peaks: Tensor) -> Tensor:
        """See Drawing."""
        if not _fits(logits):
            return self._torch.logsumexp(logits, peaks)
        sums = torch.empty((len(logits), 1), dtype=torch.float64, device="cpu")
        self._run("log_sums", logits, sums.data_ptr())
        return sums

    def _run(self, name: str, logits: Tensor, *more: Any) -> None:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        code = getattr(self._native, name)(
            self._pool.handle, self._set, logits.data_ptr(), *logits.shape, logits.stride(0), *more
        )
        if code:
            raise MemoryError(f"the kernels could not do {name} ({code})")


def _fits(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.numel() > 0
