"""DeviceInputBatch: SlotBlockTables on a device: one copy to it and one or two kernels make a step's inputs.

    StepPlan ─► int32 numbers, packed ─► pinned buffer ─► device ─► ids, positions, lengths, addresses, block tables
                                                            ▲
                            block tables and last tokens by slot

The host keeps no tables. A LAST_SAMPLED id is looked up on the device, so its token need not be known on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.engine.step_plan import LAST_SAMPLED, Int32, StepPlan
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch
from chairlift.model.batch.input_batch import StepInputs, check_ids, count_decodes
from chairlift.model.device.device_stream import DeviceStream
from chairlift.model.device.pinned_copy import copy_from_pinned
from chairlift.model.device.staging_buffers import StagingBuffers
from chairlift.model.kernels.cuda import input_kernels

NUM_STAGED = 3
"""Steps whose numbers may lie in host buffers: two in flight, and one that is being packed."""

_FIRST_NUMBERS = 16_384


@dataclass(frozen=True, slots=True)
class InputTensors:
    """The tensors of a step of up to S rows and T tokens, padding included.

    Attributes:
        input_ids, positions: int64 [T]; 0 for padding.
        cu_seqlens: int32 [S + 1]; padding rows have no tokens.
        seq_lens: int32 [S]; 0 for padding rows.
        slot_mapping: int64 [groups, T]; -1 for padding.
        block_table: int32 [groups, S, columns].
        sample_slots: int32 [S], the slot whose token is sampled from each row; -1 for none.
    """

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    seq_lens: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    sample_slots: Tensor

    @classmethod
    def empty(cls, groups: int, rows: int, tokens: int, columns: int, device: torch.device) -> "InputTensors":
        """Allocate the tensors of a step; the block table is zero, all else is for DeviceInputBatch.fill to write."""

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            empty(torch.int64, tokens), empty(torch.int64, tokens), empty(torch.int32, rows + 1),
            empty(torch.int32, rows), empty(torch.int64, groups, tokens),
            torch.zeros(groups, rows, columns, dtype=torch.int32, device=device), empty(torch.int32, rows),
        )  # fmt: skip

    def make_padding(self) -> None:
        """Make the step one that is all padding: it reads and writes no sequence."""
        for tensor in (self.input_ids, self.positions, self.cu_seqlens, self.seq_lens, self.block_table):
            tensor.zero_()
        self.slot_mapping.fill_(-1)
        self.sample_slots.fill_(-1)

    def first(self, rows: int) -> "InputTensors":
        """Return the same memory for a step of fewer rows, of one token each."""
        return InputTensors(
            self.input_ids[:rows], self.positions[:rows], self.cu_seqlens[: rows + 1], self.seq_lens[:rows],
            self.slot_mapping[:, :rows], self.block_table[:, :rows], self.sample_slots[:rows],
        )  # fmt: skip

    def groups(self) -> tuple[GroupBatch, ...]:
        """Return the addresses by layer group."""
        return tuple(map(GroupBatch, self.block_table, self.slot_mapping))


class DeviceInputBatch:
    """The block table of each slot's sequence and the token it sampled last, on a device.

    The tensors that `inputs` returns are valid until the next call.

    Attributes:
        tables: int32 [groups, slots, width]; entries behind a window, and beyond a sequence's blocks, are stale.
        last_sampled: int32 [slots + 1]; the last takes what belongs to no slot.
        vocab_size: V.
        writes: whether new tokens are written to the cache.
    """

    def __init__(
        self, max_slots: int, num_groups: int, block_size: int, vocab_size: int, *, max_model_len: int,
        device: torch.device, stream: DeviceStream, writes: bool = True, padded: Callable[[int], int] = int,
    ) -> None:  # fmt: skip
        """Allocate tables for `max_slots` slots of at most `max_model_len` tokens.

        Without `writes` no new token is written to the cache. A step of n tokens is padded to padded(n) tokens.
        """
        width = -(-max_model_len // block_size)
        self.tables = torch.zeros(num_groups, max_slots, width, dtype=torch.int32, device=device)
        self.last_sampled = torch.zeros(max_slots + 1, dtype=torch.int32, device=device)
        self.vocab_size = vocab_size
        self.writes = writes
        self._padded_size = padded
        self._block_size = block_size
        self._device = device
        self._stream = stream
        self._staging = StagingBuffers(device, stream, NUM_STAGED, _FIRST_NUMBERS)
        self._new_blocks: Int32 = np.empty((0, 4), np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take a plan's new blocks; `inputs` writes them. Slots that are released need nothing."""
        self._new_blocks = plan.new_blocks if len(plan.new_blocks) else self._new_blocks[:0]
        # A plan without rows gets no inputs, and its blocks must not be lost.
        if not plan.num_rows:
            self._write_new_blocks()

    def inputs(self, plan: StepPlan, device: torch.device) -> StepInputs:
        """Make the inputs of a step whose plan was applied. Raises TokenOutOfRange for an id outside the vocabulary."""
        counts, max_q = plan.num_new_tokens, int(plan.num_new_tokens.max(initial=0))
        seq_lens = plan.start_positions + counts
        max_kv = int(seq_lens.max(initial=0))
        tensors = InputTensors.empty(
            len(self.tables), plan.num_rows, self._padded_size(plan.num_tokens), -(-max_kv // self._block_size),
            self._device,
        )  # fmt: skip
        cu_q, logits_indices = self.fill(plan, tensors)
        batch = ForwardBatch(
            num_seqs=plan.num_rows, num_tokens=len(tensors.input_ids), num_decodes=count_decodes(counts, max_q),
            max_seqlen_q=max_q, max_seqlen_k=max_kv, positions=tensors.positions, cu_seqlens_q=tensors.cu_seqlens,
            seq_lens=tensors.seq_lens, logits_indices=logits_indices, groups=tensors.groups(),
            cu_q_list=tuple(cu_q.tolist()), seq_lens_list=tuple(seq_lens.tolist()),
        )  # fmt: skip
        return StepInputs(tensors.input_ids, batch)

    def fill(self, plan: StepPlan, tensors: InputTensors, sample_slots: Int32 | None = None) -> tuple[Int32, Tensor]:
        """Write the inputs of a step whose plan was applied; rows and tokens beyond the step's become padding.

        Args:
            plan: the plan.
            tensors: what is written.
            sample_slots: int32 [S] or None, the slot that each row samples for; -1 for none.

        Returns:
            cu_seqlens of the plan's rows, int32 [S + 1] on the host, and the indices of the tokens whose logits are
            sampled, int32 [R] on the device. Raises TokenOutOfRange for an id outside the vocabulary.
        """
        counts, rows = plan.num_new_tokens, plan.num_rows
        cu_q = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=cu_q[1:])
        assert cu_q[-1] == plan.num_tokens, f"{cu_q[-1]} tokens in rows, {plan.num_tokens} input ids"
        # Only the device knows the tokens that LAST_SAMPLED stands for; it has sampled them itself.
        check_ids(plan.input_ids[plan.input_ids != LAST_SAMPLED], self.vocab_size)
        logits_indices, new_blocks = cu_q[plan.sample_rows + 1] - 1, self._new_blocks
        self._new_blocks = new_blocks[:0]
        # In one array, since each copy to the device has a fixed cost.
        by_row = (plan.slots, counts, plan.start_positions, cu_q[:-1])
        sampled = np.empty(0, np.int32) if sample_slots is None else sample_slots
        packed = self._staging.copy((*by_row, plan.input_ids, new_blocks, logits_indices, sampled))
        blocks_begin = 4 * rows + plan.num_tokens
        samples_begin = blocks_begin + new_blocks.size
        slots_begin = samples_begin + len(logits_indices) if len(sampled) else -1

        def write() -> None:
            input_kernels.apply_new_blocks(packed, blocks_begin, len(new_blocks), self.tables)
            input_kernels.build_inputs(
                packed, rows, plan.num_tokens, 4 * rows, slots_begin, self.tables, self.last_sampled,
                input_ids=tensors.input_ids, positions=tensors.positions, cu_seqlens=tensors.cu_seqlens,
                seq_lens=tensors.seq_lens, slot_mapping=tensors.slot_mapping, block_table=tensors.block_table,
                sample_slots=tensors.sample_slots, block_size=self._block_size, writes=self.writes,
            )  # fmt: skip

        self._stream.run(write)
        return cu_q, packed[samples_begin : samples_begin + len(logits_indices)]

    def store_sampled(self, slots: NDArray[np.int64], tokens: Int32) -> None:
        """Store the token that each slot sampled, from the host."""

        def write() -> None:
            index, values = copy_from_pinned(slots, self._device), copy_from_pinned(tokens, self._device)
            self.last_sampled.index_copy_(0, index, values)

        self._stream.run(write)

    def _write_new_blocks(self) -> None:
        if len(new_blocks := self._new_blocks):
            packed = self._staging.copy((new_blocks,))
            self._stream.run(lambda: input_kernels.apply_new_blocks(packed, 0, len(new_blocks), self.tables))
            self._new_blocks = new_blocks[:0]
