"""sample_rows: samples a token for each row on the logits' own device, in torch, without a word from the host.

It is the reference of kernels/cuda/sampling_kernels.py and takes its place where triton is missing. The rules are those
of truncated_sampling.py, with weights as fixed-point numbers: e**((logit - largest) / temperature) in float64, times
2**scale_bits, rounded to int64. Sums of integers do not depend on their order, so neither does a token.

Parameters are kept in one table (kernels/sampling_parameter_columns.py): the last row takes what belongs to no slot.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.kernels.sampling_parameter_columns import (
    CHOICE,
    MIN_P,
    NUM_COLUMNS,
    NUM_OUTPUTS,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    scale_bits,
)
from chairlift.model.sampling.truncated_sampling import TruncationParams

_LOW = 0xFFFFFFFF
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that the grammars of some rows allow.

    Attributes:
        bitmask: int32 [M, ceil(V / 32)], one bit for each token, lowest first.
        mask_rows: int32 [R], the row of the bitmask for each row; -1 allows every token.
    """

    bitmask: Tensor
    mask_rows: Tensor


@dataclass(frozen=True, slots=True)
class SampleBuffers:
    """The tensors that sampling writes.

    Attributes:
        tokens: int32 [R] or longer, the sampled tokens; 0 in rows without a slot.
        max_logits: float32 [R, 2] or longer, the largest logit of each row and the largest allowed one; NaN if one is.
        last_sampled: int32 [slots + 1], the token of each slot that has a row.
        results: int32, the memory of tokens, then that of max_logits.
    """

    tokens: Tensor
    max_logits: Tensor
    last_sampled: Tensor
    results: Tensor

    @classmethod
    def empty(
        cls, max_rows: int, max_slots: int, device: torch.device, last_sampled: Tensor | None = None
    ) -> "SampleBuffers":
        """Return buffers of zeros, with the tensor of last tokens where there is one already."""
        results = torch.zeros(3 * max_rows, dtype=torch.int32, device=device)
        if last_sampled is None:
            last_sampled = torch.zeros(max_slots + 1, dtype=torch.int32, device=device)
        tokens, max_logits = split_results(results)
        return cls(tokens, max_logits, last_sampled, results)


def split_results(results: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts of SampleBuffers.results: tokens int32 [R], largest logits float32 [R, 2]."""
    max_rows = len(results) // 3
    return results[:max_rows], results[max_rows:].view(torch.float32).view(max_rows, 2)


def table_of(rules: TruncationParams, seeds: NDArray[np.int64]) -> Tensor:
    """Return the table of N rows, int64 [N, 8], on the CPU; the columns after the seed are zero."""
    table = np.zeros((len(seeds), NUM_COLUMNS), np.int64)
    floats = table.view(np.float64)
    floats[:, TEMPERATURE], floats[:, TOP_P], floats[:, MIN_P] = rules.temperature, rules.top_p, rules.min_p
    table[:, TOP_K], table[:, SEED] = rules.top_k, seeds
    return torch.from_numpy(table)


def sample_rows(
    logits: Tensor, slots: Tensor, table: Tensor, buffers: SampleBuffers, allowed: AllowedTokens | None = None
) -> None:  # fmt: skip
    """Sample one token for each row, and add one to the number of outputs of its slot.

    A row whose largest logit, or largest allowed logit, is not finite gets the id of that logit: the caller reads
    `max_logits` and reports the row. So does a row with temperature 0.

    Args:
        logits: [R, V] of any floating dtype; -inf is a banned token. Read as float32.
        slots: int32 [R], each slot once; -1 for a row without one.
        table: the parameters, see the module.
        buffers: what is written.
        allowed: tokens that grammars allow.
    """
    num_rows = len(logits)
    values = logits.float()
    largest = values.amax(-1)
    if allowed is not None:
        values = values.masked_fill(~_allowed_tokens(allowed, values.shape[1]), -torch.inf)
    peak, argmax_ids = values.amax(-1), _first_largest(values)
    rules = table[slots.long()]
    floats = rules.view(torch.float64)
    bits = philox_bits(rules[:, SEED], rules[:, CHOICE], rules[:, NUM_OUTPUTS])
    is_random = (floats[:, TEMPERATURE] > 0) & largest.isfinite() & peak.isfinite()
    # Rows that are not sampled are computed, too, as the host does not know which they are; zeros make no NaN.
    sampled = sample_by_bits(torch.where(is_random[:, None], values, 0.0), rules, bits)
    tokens = torch.where(slots >= 0, torch.where(is_random, sampled, argmax_ids), 0).int()
    buffers.tokens[:num_rows] = tokens
    buffers.max_logits[:num_rows] = torch.stack([largest, peak], -1)
    buffers.last_sampled[slots.long()] = tokens
    # Rows without a slot (-1) write to the last row of the table, which belongs to none.
    table[slots.long(), NUM_OUTPUTS] += 1


def sample_by_bits(values: Tensor, rules: Tensor, bits: Tensor) -> Tensor:
    """Return one sampled id for each row, int64 [R].

    Args:
        values: logits, float32 [R, V], no NaN, the largest of each row finite.
        rules: rows of the table; a temperature of 0 counts as 1.
        bits: int64 [R], the random number of each row times 2**53.
    """
    vocab_size = values.shape[1]
    temperature, top_p, min_p = rules[:, :TOP_K].view(torch.float64).contiguous().T[:, :, None]
    temperature = torch.where(temperature > 0, temperature, 1.0)
    top_k = rules[:, TOP_K, None]
    values, ids = values.sort(dim=-1, descending=True, stable=True)
    weights = ((values.double() - values[:, :1].double()) * (1.0 / temperature)).exp_()
    limit = torch.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)
    is_kept = values >= values.gather(1, limit - 1)
    fixed = (weights * 2.0 ** scale_bits(vocab_size) + 0.5).long() * is_kept
    sums = fixed.cumsum(-1)
    target = (top_p * sums[:, -1:].double()).ceil().long().clamp_(min=1)
    is_kept = (sums - fixed < target) | (top_p >= 1)
    is_kept &= weights >= min_p
    sums = torch.zeros_like(fixed).scatter_(1, ids, fixed * is_kept).cumsum(-1)
    return torch.searchsorted(sums, share(bits[:, None], sums[:, -1:]), right=True)[:, 0]


def share(bits: Tensor, totals: Tensor) -> Tensor:
    """Return floor(bits * total / 2**53), exactly; bits are below 2**53 and totals below 2**62, all int64."""
    high, low = bits >> 27, bits & ((1 << 27) - 1)
    total_high, total_low = totals >> 31, totals & ((1 << 31) - 1)
    # The product has up to 115 bits: it is computed in parts that fit into int64.
    middle = high * total_low + (low * total_high << 4) + (low * total_low >> 27)
    return (high * total_high << 5) + (middle >> 26)


def philox_bits(seed: Tensor, choice: Tensor, position: Tensor) -> Tensor:
    """Return the number of philox.uniforms times 2**53 for each entry; all tensors are int64 of one shape."""
    first, second, third, fourth = position & _LOW, position >> 32 & _LOW, choice & _LOW, torch.zeros_like(choice)
    low_key, high_key = seed & _LOW, seed >> 32 & _LOW
    for _ in range(_ROUNDS):
        left, right = 0xD2511F53 * first, 0xCD9E8D57 * third  # these wrap around, and their bits are right
        first, second = (right >> 32 & _LOW) ^ second ^ low_key, right & _LOW
        third, fourth = (left >> 32 & _LOW) ^ fourth ^ high_key, left & _LOW
        low_key, high_key = low_key + 0x9E3779B9 & _LOW, high_key + 0xBB67AE85 & _LOW
    return first << 21 | second >> 11


def _allowed_tokens(allowed: AllowedTokens, vocab_size: int) -> Tensor:
    """Return whether each token is allowed, bool [R, V]."""
    words = allowed.bitmask[allowed.mask_rows.long()]  # -1 reads the last row, whose bits are not used
    ids = torch.arange(vocab_size, device=words.device)
    is_allowed = words[:, ids // 32] >> (ids % 32).int() & 1 != 0
    return is_allowed | (allowed.mask_rows < 0)[:, None]


def _first_largest(values: Tensor) -> Tensor:
    """Return the lowest id of the largest value of each row; NaN counts as the largest."""
    peak = values.amax(-1, keepdim=True)
    ids = torch.arange(values.shape[1], device=values.device)
    is_peak = (values == peak) | (values.isnan() & peak.isnan())
    return torch.where(is_peak, ids, values.shape[1]).amin(-1)
