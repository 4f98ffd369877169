"""DeviceSampler: keeps sampling parameters and last tokens by slot on the device, and samples there.

The host only enqueues work: it neither waits for the device nor reads a token. So it can launch the next step, whose
input ids are `last_sampled`, before it knows the tokens of this one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import NewSequence
from chairlift.model.device.triton_package import can_use_triton
from chairlift.model.kernels.sampling_parameter_columns import CHOICE, NUM_COLUMNS, NUM_OUTPUTS, SLOT, TOP_P
from chairlift.model.sampling.device import fixed_point_sampling
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens, SampleBuffers, table_of
from chairlift.model.sampling.logits_processing import RowLogitsProcessor
from chairlift.model.sampling.truncated_sampling import TruncationParams


class DeviceSampler:
    """Samples rows of a step on the device.

    Attributes:
        buffers: what a step writes; the next step writes there again.
        table: the parameters by slot, see fixed_point_sampling.
    """

    def __init__(
        self, max_slots: int, max_rows: int, device: torch.device, *, use_triton: bool | None = None,
        last_sampled: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Create the state of `max_slots` slots for steps of up to `max_rows` rows.

        Args:
            max_slots, max_rows: sizes of the tensors.
            device: where the logits are.
            use_triton: whether to use Triton's kernels instead of torch; None is where these run.
            last_sampled: int32 [max_slots + 1], where the token of each slot is written; None makes it.
        """
        self.buffers = SampleBuffers.empty(max_rows, max_slots, device, last_sampled)
        self.table = torch.zeros(max_slots + 1, NUM_COLUMNS, dtype=torch.int64, device=device)
        self.table[:, TOP_P].view(torch.float64).fill_(1.0)
        self._sample_rows = fixed_point_sampling.sample_rows
        if can_use_triton(device) if use_triton is None else use_triton:
            from chairlift.model.sampling.device import triton_sampling

            self._sample_rows = triton_sampling.sample_rows

    @staticmethod
    def can_sample(params: SamplingParams) -> bool:
        """Return whether a request needs nothing but its token: no logprobs, logits processors or rules by entropy."""
        rules = TruncationParams.neutral(1)
        rules.set(0, params)
        return params.logprobs is None and not RowLogitsProcessor.is_needed(params) and not rules.by_entropy.any()

    def add_sequences(self, sequences: Sequence[NewSequence]) -> None:
        """Replace the parameters of some slots, by one copy to the device.

        Args:
            sequences: sequences whose parameters `can_sample` accepts, each of another slot.
        """
        if not sequences:
            return
        rules = TruncationParams.neutral(len(sequences))
        seeds = np.zeros(len(sequences), np.int64)
        for row, new in enumerate(sequences):
            assert new.params.seed is not None, "sampling parameters are resolved before they reach the runner"
            rules.set(row, new.params)
            # The kernel knows greedy rows by a temperature of 0.
            rules.temperature[row] = 0.0 if new.params.greedy else rules.temperature[row]
            seeds[row] = new.params.seed
        rows = table_of(rules, seeds)
        rows[:, CHOICE] = torch.tensor([new.choice_index for new in sequences])
        rows[:, NUM_OUTPUTS] = torch.tensor([new.num_output_tokens for new in sequences])
        rows[:, SLOT] = torch.tensor([new.slot for new in sequences])
        if self.table.device.type == "cuda":
            # A copy from pinned memory does not make the host wait.
            rows = rows.pin_memory()
        rows = rows.to(self.table.device, non_blocking=True)
        self.table.index_copy_(0, rows[:, SLOT], rows)

    def sample(self, logits: Tensor, slots: Tensor, allowed: AllowedTokens | None = None) -> None:
        """Sample a token for each row into `buffers`, and count it as an output of the row's slot.

        Args:
            logits: [R, V] of any floating dtype; -inf is a banned token.
            slots: int32 [R], each slot once; -1 for a row without a sequence.
            allowed: tokens that grammars allow.
        """
        self._sample_rows(logits, slots, self.table, self.buffers, allowed)
