"""SlotBlockTables: keeps block tables and last tokens by slot, and builds a step's ForwardBatch from its StepPlan.

    blocks[group, slot, index]           block ids, -1 where no block was assigned     one row of tables per slot
    last_sampled[slot]                   the token that LAST_SAMPLED stands for
    adapters[slot]                       number of the sequence's adapter, 0 for none

All arrays are numpy on the host; one step costs a handful of array operations, whatever its number of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import LAST_SAMPLED, Int32, StepPlan
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch

Int64 = NDArray[np.int64]

_FIRST_WIDTH = 16


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of the model for one step.

    Attributes:
        input_ids: int64 [T] on the device, each below the vocabulary size; the last ones may be padding.
        batch: the sequences of the step.
    """

    input_ids: Tensor
    batch: ForwardBatch


class SlotBlockTables:
    """The block table of each slot's sequence, the token it sampled last, and the number of its adapter.

    Owns: all three. Does not own: parameters and histories (sampling_state.py), the blocks themselves.

    Attributes:
        blocks: int32 [groups, slots, width], block ids, -1 where no block was assigned.
        last_sampled: int32 [slots].
        adapters: int32 [slots], 0 for none.
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
        """Create tables for `max_slots` slots.

        Without `writes` no new token is written to the cache. A step of n tokens is padded to padded(n) tokens.
        """
        self.writes = writes
        self._padded_size = padded
        self._block_size = block_size
        self.vocab_size = vocab_size
        self.blocks = np.full((num_groups, max_slots, _FIRST_WIDTH), -1, np.int32)
        self.last_sampled = np.zeros(max_slots, np.int32)
        self.adapters = np.zeros(max_slots, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Apply a plan's released slots, new sequences and new blocks, in this order."""
        # A new sequence may have fewer blocks than the last one of its slot, so nothing of that may be left.
        cleared = [*plan.released_slots, *(new.slot for new in plan.new_sequences)]
        if cleared:
            slots = np.asarray(cleared)
            slots = slots[(slots >= 0) & (slots < self.blocks.shape[1])]
            self.blocks[:, slots] = -1
            self.adapters[slots] = 0
        for new in plan.new_sequences:
            self.adapters[new.slot] = new.adapter
        if len(plan.new_blocks):
            slot, group, index, block = plan.new_blocks.T
            self._widen(int(index.max()) + 1)
            self.blocks[group, slot, index] = block

    def inputs(self, plan: StepPlan, device: torch.device) -> StepInputs:
        """Build the arrays of a step whose plan was applied.

        Raises TokenOutOfRange for an input id outside the vocabulary.
        """
        counts = plan.num_new_tokens
        seq_lens = (plan.start_positions + counts).astype(np.int32, copy=False)
        max_kv, max_q = int(seq_lens.max(initial=0)), int(counts.max(initial=0))
        cu_q, rows, positions = _expand_rows(plan, max_q)
        num_decodes = count_decodes(counts, max_q)
        width = -(-max_kv // self._block_size)
        self._widen(width)
        groups = tuple(
            self._group(self.blocks[group, plan.slots, :width], rows, positions, device)
            for group in range(len(self.blocks))
        )
        more = self._padded_size(plan.num_tokens) - plan.num_tokens
        batch = ForwardBatch(
            num_seqs=plan.num_rows,
            num_tokens=plan.num_tokens + more,
            num_decodes=num_decodes,
            max_seqlen_q=max_q,
            max_seqlen_k=max_kv,
            positions=_move_and_wait(_pad(positions, more), device),
            cu_seqlens_q=_move_and_wait(cu_q, device),
            seq_lens=_move_and_wait(seq_lens, device),
            logits_indices=_move_and_wait(plan.sample_tokens, device),
            groups=groups,
            cu_q_list=tuple(cu_q.tolist()),
            seq_lens_list=tuple(seq_lens.tolist()),
        )
        return StepInputs(_move_and_wait(_pad(self._ids(plan, rows), more), device), batch)

    def store_sampled(self, slots: Int64, tokens: Int32) -> None:
        """Store the token that each slot sampled."""
        self.last_sampled[slots] = tokens

    def _ids(self, plan: StepPlan, rows: Int64) -> Int64:
        ids = np.where(plan.input_ids == LAST_SAMPLED, self.last_sampled[plan.slots[rows]], plan.input_ids)
        check_ids(ids, self.vocab_size)
        return ids.astype(np.int64)

    def _group(self, table: Int32, rows: Int64, positions: Int64, device: torch.device) -> GroupBatch:
        blocks = table[rows, positions // self._block_size].astype(np.int64)
        assert (blocks >= 0).all(), "a new token has no block"
        slot_mapping = blocks * self._block_size + positions % self._block_size
        if not self.writes:
            slot_mapping[:] = -1
        more = self._padded_size(len(positions)) - len(positions)
        # Unassigned entries lie behind a window; block 0 keeps kernels that gather whole tables in bounds.
        return GroupBatch(
            _move_and_wait(np.maximum(table, 0), device), _move_and_wait(_pad(slot_mapping, more, -1), device)
        )

    def _widen(self, width: int) -> None:
        have = self.blocks.shape[2]
        if width > have:
            more = max(width, 2 * have) - have
            self.blocks = np.pad(self.blocks, ((0, 0), (0, 0), (0, more)), constant_values=-1)


def count_decodes(counts: Int32, max_q: int) -> int:
    """Return the number of rows with one token, of rows with `counts` tokens, at most max_q."""
    num_decodes = len(counts) if max_q <= 1 else int(np.argmax(counts != 1))
    assert max_q <= 1 or (counts[num_decodes:] > 1).all(), "rows with one token come first; every row has one or more"
    return num_decodes


def check_ids(ids: Int32, vocab_size: int) -> None:
    """Raise TokenOutOfRange for an id outside the vocabulary."""
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        raise TokenOutOfRange(int(ids[outside][0]), vocab_size)


def _expand_rows(plan: StepPlan, max_q: int) -> tuple[Int32, Int64, Int64]:
    """Return cu_seqlens of the rows, int32 [S + 1], and the row and position of each token, int64 [T]."""
    counts, starts = plan.num_new_tokens, plan.start_positions
    if max_q <= 1:  # decode steps: the most frequent and shortest, where this code's time shows
        assert plan.num_tokens == plan.num_rows, f"{plan.num_rows} rows, {plan.num_tokens} input ids"
        return np.arange(plan.num_rows + 1, dtype=np.int32), np.arange(plan.num_rows), starts.astype(np.int64)
    cu_q = np.zeros(plan.num_rows + 1, np.int32)
    np.cumsum(counts, out=cu_q[1:])
    assert cu_q[-1] == plan.num_tokens, f"{cu_q[-1]} tokens in rows, {plan.num_tokens} input ids"
    rows = np.repeat(np.arange(plan.num_rows), counts)
    return cu_q, rows, np.arange(plan.num_tokens) - (cu_q[:-1] - starts)[rows]


def _pad(values: Int64, more: int, fill_value: int = 0) -> Int64:
    return np.pad(values, (0, more), constant_values=fill_value) if more else values


def _move_and_wait(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return the values on the device, for whose copy the host waits (copy_from_pinned does not).

    On the CPU the tensor is the same memory, without a call that releases Python's lock.
    """
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device)
