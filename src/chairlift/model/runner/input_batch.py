"""StepPlan -> ForwardBatch: block tables and last tokens by slot, and the arrays of one step made from them.

    blocks[group, slot, index]           block ids, -1 where none was named     one row of tables for each slot
    last_sampled[slot]                   what LAST_SAMPLED stands for

All of it is numpy on the host; one step costs a handful of array operations, whatever its number of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import LAST_SAMPLED, Int32, StepPlan
from chairlift.model.attention.base import ForwardBatch, GroupBatch

Int64 = NDArray[np.int64]

_FIRST_WIDTH = 16


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model takes in one step.

    Attributes:
        input_ids: int64 [T] on the device, each below the vocabulary size; the last ones may be padding.
        batch: the sequences.
    """

    input_ids: Tensor
    batch: ForwardBatch


class SlotTables:
    """Where the tokens of each slot's sequence lie, and the token it sampled last.

    Owns: both. Does not own: parameters and histories (sampling_state.py), the blocks themselves.

    Attributes:
        blocks: int32 [groups, slots, width], block ids, -1 where none was named.
        last_sampled: int32 [slots].
        vocab_size: V.
        writes: whether new tokens are written to the cache.
    """

    def __init__(
        self,
        max_slots: int,
        num_groups: int,
        block_size: int,
        vocab_size: int,
        *,
        writes: bool = True,
        padded: Callable[[int], int] = int,
    ) -> None:
        """Make tables for so many slots.

        Without `writes` every new token is padding to the cache. A step of n tokens gets padded(n) of them.
        """
        self.writes = writes
        self._padded = padded
        self._block_size = block_size
        self.vocab_size = vocab_size
        self.blocks = np.full((num_groups, max_slots, _FIRST_WIDTH), -1, np.int32)
        self.last_sampled = np.zeros(max_slots, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take over who leaves, who comes, and which blocks were added, in this order."""
        gone = [*plan.released_slots, *(new.slot for new in plan.new_sequences)]
        if gone:
            slots = np.asarray(gone)
            self.blocks[:, slots[(slots >= 0) & (slots < self.blocks.shape[1])]] = -1
        if len(plan.new_blocks):
            slot, group, index, block = plan.new_blocks.T
            self._widen(int(index.max()) + 1)
            self.blocks[group, slot, index] = block

    def inputs(self, plan: StepPlan, device: torch.device) -> StepInputs:
        """Build the arrays of a step whose news were applied.

        Raises TokenOutOfRange for an input id that the vocabulary does not have.
        """
        counts = plan.num_new_tokens
        seq_lens = (plan.start_positions + counts).astype(np.int32, copy=False)
        max_kv, max_q = int(seq_lens.max(initial=0)), int(counts.max(initial=0))
        cu_q, rows, positions = _spread(plan, max_q)
        num_decodes = plan.num_rows if max_q <= 1 else int(np.argmax(counts != 1))
        assert max_q <= 1 or (counts[num_decodes:] > 1).all(), "rows with one token come first; every row brings one"
        width = -(-max_kv // self._block_size)
        self._widen(width)
        groups = tuple(
            self._group(self.blocks[group, plan.slots, :width], rows, positions, device)
            for group in range(len(self.blocks))
        )
        more = self._padded(plan.num_tokens) - plan.num_tokens
        batch = ForwardBatch(
            num_seqs=plan.num_rows,
            num_tokens=plan.num_tokens + more,
            num_decodes=num_decodes,
            max_q=max_q,
            max_kv=max_kv,
            positions=_placed(_padded(positions, more), device),
            cu_q=_placed(cu_q, device),
            seq_lens=_placed(seq_lens, device),
            logit_rows=_placed(cu_q[plan.sample_rows + 1] - 1, device),
            groups=groups,
            cu_q_list=tuple(cu_q.tolist()),
            seq_lens_list=tuple(seq_lens.tolist()),
        )
        return StepInputs(_placed(_padded(self._ids(plan, rows), more), device), batch)

    def remember(self, slots: Int64, tokens: Int32) -> None:
        """Keep the token that each slot sampled."""
        self.last_sampled[slots] = tokens

    def _ids(self, plan: StepPlan, rows: Int64) -> Int64:
        ids = np.where(plan.input_ids == LAST_SAMPLED, self.last_sampled[plan.slots[rows]], plan.input_ids)
        outside = (ids < 0) | (ids >= self.vocab_size)
        if outside.any():
            raise TokenOutOfRange(int(ids[outside][0]), self.vocab_size)
        return ids.astype(np.int64)

    def _group(self, table: Int32, rows: Int64, positions: Int64, device: torch.device) -> GroupBatch:
        blocks = table[rows, positions // self._block_size].astype(np.int64)
        assert (blocks >= 0).all(), "a new token has no block"
        slot_mapping = blocks * self._block_size + positions % self._block_size
        if not self.writes:
            slot_mapping[:] = -1
        more = self._padded(len(positions)) - len(positions)
        # Entries that were never named lie behind a window; 0 keeps kernels that gather whole tables in bounds.
        return GroupBatch(_placed(np.maximum(table, 0), device), _placed(_padded(slot_mapping, more, -1), device))

    def _widen(self, width: int) -> None:
        have = self.blocks.shape[2]
        if width > have:
            more = max(width, 2 * have) - have
            self.blocks = np.pad(self.blocks, ((0, 0), (0, 0), (0, more)), constant_values=-1)


def _spread(plan: StepPlan, max_q: int) -> tuple[Int32, Int64, Int64]:
    """Return where the rows' tokens begin, int32 [S + 1], and of each token its row and its position, int64 [T]."""
    counts, starts = plan.num_new_tokens, plan.start_positions
    if max_q <= 1:  # most steps are so, and so short that all of this is felt
        assert plan.num_tokens == plan.num_rows, f"{plan.num_rows} rows, {plan.num_tokens} input ids"
        return np.arange(plan.num_rows + 1, dtype=np.int32), np.arange(plan.num_rows), starts.astype(np.int64)
    cu_q = np.zeros(plan.num_rows + 1, np.int32)
    np.cumsum(counts, out=cu_q[1:])
    assert cu_q[-1] == plan.num_tokens, f"{cu_q[-1]} tokens in rows, {plan.num_tokens} input ids"
    rows = np.repeat(np.arange(plan.num_rows), counts)
    return cu_q, rows, np.arange(plan.num_tokens) - (cu_q[:-1] - starts)[rows]


def _padded(values: Int64, more: int, filling: int = 0) -> Int64:
    return np.pad(values, (0, more), constant_values=filling) if more else values


def _placed(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return them on the device; on the CPU without a call that lets other threads have Python's lock."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device)
