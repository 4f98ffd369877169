"""TritonSamplingOps: samples by sampling_kernels on the GPU; sample_rows does so without a word from the host."""

import numpy as np
import torch
from torch import Tensor

from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS
from chairlift.model.kernels.cuda.sampling_kernels import NUM_WARPS, launch_constants, logsumexp_kernel, sample_kernel
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens, SampleBuffers, table_of
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import Float64, Rows, TruncationParams

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TritonSamplingOps:
    """SamplingOps for float32, bfloat16 and float16 logits on a GPU.

    TorchSamplingOps handles other logits, truncation by entropy, and top_k_tokens. Weights are fixed-point numbers of
    float64 exponentials. So a token differs from torch's if a sum is within rounding of a threshold (the random number,
    top_p). A row's token depends on that row alone.
    """

    def __init__(self) -> None:
        self._torch = TorchSamplingOps()

    def sample_tokens(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        """See SamplingOps."""
        is_native = ~rules.by_entropy
        if logits.dtype not in DTYPES or not is_native.any():
            return self._torch.sample_tokens(logits, rules, numbers)
        if is_native.all():
            return self._sample(logits, rules, numbers)
        tokens = np.empty(len(numbers), np.int64)
        for rows, sample_tokens in (
            (np.flatnonzero(is_native), self._sample),
            (np.flatnonzero(~is_native), self._torch.sample_tokens),
        ):
            some = logits[torch.from_numpy(rows).to(logits.device)]
            tokens[rows] = sample_tokens(some, rules.take(rows), numbers[rows])
        return tokens

    def _sample(self, logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
        num_rows, device = len(logits), logits.device
        table = table_of(rules, (numbers * 2.0**53).astype(np.int64)).to(device)
        buffers = SampleBuffers.empty(num_rows, num_rows, device)
        slots = torch.arange(num_rows, dtype=torch.int32, device=device)
        sample_rows(logits, slots, table, buffers, is_keyed=False)
        tokens: Rows = buffers.tokens.cpu().numpy().astype(np.int64)
        return tokens

    def top_k_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See SamplingOps."""
        return self._torch.top_k_tokens(logits, count)

    def logsumexp(self, logits: Tensor, max_logits: Tensor) -> Tensor:
        """See SamplingOps; sums in float64 by a fixed order."""
        if logits.dtype not in DTYPES:
            return self._torch.logsumexp(logits, max_logits)
        logits = _with_dense_rows(logits)
        sums = torch.empty((len(logits), 1), dtype=torch.float64, device=logits.device)
        if len(logits):
            logsumexp_kernel[(len(logits),)](
                logits, logits.stride(0), logits.shape[1], max_logits.contiguous(), sums,
                BLOCK=launch_constants(logits.shape[1])["BLOCK"], num_warps=NUM_WARPS,
                **LAUNCH_OPTIONS,
            )  # fmt: skip
        return sums


def sample_rows(
    logits: Tensor, slots: Tensor, table: Tensor, buffers: SampleBuffers, allowed: AllowedTokens | None = None,
    *, is_keyed: bool = True,
) -> None:  # fmt: skip
    """Sample as fixed_point_sampling.sample_rows does, with the same arguments.

    The launch depends on the shapes alone, so a CUDA graph can record it. Rows of logits or of the bitmask whose
    elements do not lie side by side are copied first. Without `is_keyed` the random number of a row, times 2**53, is in
    the table in place of the seed.
    """
    num_rows, vocab_size = logits.shape
    if not num_rows:
        return
    logits = _with_dense_rows(logits)
    bitmask, mask_rows = slots, slots
    if allowed is not None:
        bitmask, mask_rows = _with_dense_rows(allowed.bitmask), allowed.mask_rows
    constants = launch_constants(vocab_size)
    candidates = torch.empty((num_rows, constants["BLOCK"]), dtype=logits.dtype, device=logits.device)
    sample_kernel[(num_rows,)](
        logits, logits.stride(0), vocab_size, slots, table.view(torch.float64), table, bitmask, bitmask.stride(0),
        mask_rows, buffers.tokens, buffers.max_logits, buffers.last_sampled, candidates,
        torch.empty_like(candidates, dtype=torch.int32),
        HAS_MASK=allowed is not None, IS_KEYED=is_keyed, num_warps=NUM_WARPS, **constants,
        **LAUNCH_OPTIONS,
    )  # fmt: skip


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """Return a tensor [R, N] whose rows have their elements side by side; their distance may be any."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()
