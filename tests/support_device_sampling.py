"""Random rows, rules and keys for the tests of sampling on the device."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.kernels.sampling_parameter_columns import CHOICE, NUM_COLUMNS, NUM_OUTPUTS
from chairlift.model.sampling.device.fixed_point_sampling import SampleBuffers, table_of
from chairlift.model.sampling.philox import uniforms
from chairlift.model.sampling.truncated_sampling import TruncationParams, sample_tokens, wide

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Rows of logits with rules and keys, none of them greedy; slot i belongs to row i."""

    logits: Tensor
    rules: TruncationParams
    seeds: NDArray[np.int64]
    choices: NDArray[np.int64]
    positions: NDArray[np.int64]

    @property
    def numbers(self) -> NDArray[np.float64]:
        return uniforms(self.seeds, self.choices, self.positions)

    @property
    def slots(self) -> Tensor:
        return torch.arange(len(self.logits), dtype=torch.int32)

    @property
    def buffers(self) -> SampleBuffers:
        return SampleBuffers.empty(len(self.logits), len(self.logits), CPU)

    def table(self) -> Tensor:
        table = torch.zeros(len(self.seeds) + 1, NUM_COLUMNS, dtype=torch.int64)
        table[:-1] = table_of(self.rules, self.seeds)
        table[:-1, CHOICE], table[:-1, NUM_OUTPUTS] = torch.from_numpy(self.choices), torch.from_numpy(self.positions)
        return table

    def expected(self) -> list[int]:
        """Return the tokens that truncated_sampling samples."""
        return sample_tokens(wide(self.logits), self.rules, self.numbers).tolist()

    def at(self, rows: NDArray[np.int64]) -> "Case":
        return Case(
            self.logits[rows], self.rules.take(rows), self.seeds[rows], self.choices[rows], self.positions[rows]
        )


def rules_of(count: int, **chosen: object) -> TruncationParams:
    """Return the rules of `count` rows; a value is that of all rows or an array."""
    neutral = TruncationParams.neutral(count)
    return replace(
        neutral,
        **{
            name: np.broadcast_to(np.asarray(value), count).astype(getattr(neutral, name).dtype)
            for name, value in chosen.items()
        },
    )


def case_of(logits: Tensor, rules: TruncationParams, seed: int = 0) -> Case:
    """Return a case with random keys."""
    rng, count = np.random.default_rng(seed), len(logits)
    return Case(
        logits, rules, rng.integers(-(2**63), 2**63 - 1, count), rng.integers(0, 128, count),
        rng.integers(0, 2**33, count),
    )  # fmt: skip


def random_case(count: int, vocab_size: int, seed: int, *, dtype: torch.dtype = torch.float32, levels: int = 0) -> Case:
    """Return rows that are flat or peaked, some with banned tokens, with all kinds of rules.

    With `levels` logits are multiples of 1 / levels, so that many are equal.
    """
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(count, vocab_size)) * rng.choice([0.3, 3, 9], (count, 1))).to(dtype)
    if levels:
        logits = (logits * levels).round() / levels
    banned = rng.uniform(size=logits.shape) < rng.choice([0, 0, 0.3, 0.97], (count, 1))
    logits[torch.from_numpy(banned)] = -torch.inf
    logits[:, rng.integers(vocab_size)] = 0.5
    rules = rules_of(
        count, temperature=rng.choice([1e-3, 0.3, 0.7, 1, 1.5, 2, 100], count),
        top_k=rng.choice([0, 0, 1, 2, 5, 50, vocab_size - 1, vocab_size, 10 * vocab_size], count),
        top_p=rng.choice([1, 1, 0.1003, 0.5003, 0.9003, 0.99999, 1e-9], count),
        min_p=rng.choice([0, 0, 0.0503, 0.3, 1], count),
    )  # fmt: skip
    return case_of(logits, rules, seed)


def bitmask_of(is_allowed: NDArray[np.bool_]) -> Tensor:
    """Return the mask of tokens [M, V], int32 [M, ceil(V / 32)]."""
    bits = np.zeros((len(is_allowed), -(-is_allowed.shape[1] // 32) * 32), bool)
    bits[:, : is_allowed.shape[1]] = is_allowed
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
