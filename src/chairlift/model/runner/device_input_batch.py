"""DeviceInputBatch: SlotBlockTables on a device: one copy to it and one or two kernels make a step's inputs.

    StepPlan ─► int32 numbers, packed ─► pinned buffer ─► device ─► ids, positions, lengths, addresses, block tables
                                                            ▲
                            block tables and last tokens by slot

The host keeps no tables. A LAST_SAMPLED id is looked up on the device, so its token need not be known on the host.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.engine.step_plan import LAST_SAMPLED, Int32, StepPlan
from chairlift.model.attention.base import ForwardBatch, GroupBatch
from chairlift.model.kernels.cuda import step_kernels
from chairlift.model.runner.input_batch import StepInputs, check_ids, count_decodes
from chairlift.model.runner.staging_buffers import Event, StagingBuffers

NUM_STAGED = 3
"""Steps whose numbers may lie in host buffers: two in flight, and one that is being packed."""

_FIRST_NUMBERS = 16_384


class DeviceInputBatch:
    """The block table of each slot's sequence and the token it sampled last, on a device.

    The tensors that `inputs` returns are valid until the next call.

    Attributes:
        tables: int32 [groups, slots, width]; entries behind a window, and beyond a sequence's blocks, are stale.
        last_sampled: int32 [slots].
        vocab_size: V.
        writes: whether new tokens are written to the cache.
    """

    def __init__(
        self, max_slots: int, num_groups: int, block_size: int, vocab_size: int, *, max_model_len: int,
        device: torch.device, writes: bool = True, padded: Callable[[int], int] = int,
        make_event: Callable[[], Event] | None = None,
    ) -> None:  # fmt: skip
        """Allocate tables for `max_slots` slots of at most `max_model_len` tokens.

        Without `writes` no new token is written to the cache. A step of n tokens is padded to padded(n) tokens.
        `make_event` makes the events of the device's stream, by default CUDA's.
        """
        width = -(-max_model_len // block_size)
        self.tables = torch.zeros(num_groups, max_slots, width, dtype=torch.int32, device=device)
        self.last_sampled = torch.zeros(max_slots, dtype=torch.int32, device=device)
        self.vocab_size = vocab_size
        self.writes = writes
        self._padded_size = padded
        self._block_size = block_size
        self._device = device
        self._staging = StagingBuffers(device, NUM_STAGED, _FIRST_NUMBERS, make_event)
        self._new_blocks: Int32 = np.empty((0, 4), np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take a plan's new blocks; `inputs` writes them. Slots that are released need nothing."""
        self._new_blocks = plan.new_blocks if len(plan.new_blocks) else self._new_blocks[:0]
        if not plan.num_rows:
            self._write_new_blocks()

    def inputs(self, plan: StepPlan, device: torch.device) -> StepInputs:
        """Make the inputs of a step whose plan was applied. Raises TokenOutOfRange for an id outside the vocabulary."""
        counts, starts = plan.num_new_tokens, plan.start_positions
        cu_q = np.zeros(plan.num_rows + 1, np.int32)
        np.cumsum(counts, out=cu_q[1:])
        assert cu_q[-1] == plan.num_tokens, f"{cu_q[-1]} tokens in rows, {plan.num_tokens} input ids"
        check_ids(plan.input_ids[plan.input_ids != LAST_SAMPLED], self.vocab_size)
        seq_lens, max_q = starts + counts, int(counts.max(initial=0))
        num_decodes = count_decodes(counts, max_q)
        logits_indices = cu_q[plan.sample_rows + 1] - 1
        rows = (plan.slots, counts, starts, cu_q[:-1])
        packed = self._staging.copy((*rows, plan.input_ids, self._new_blocks, logits_indices))
        ids_begin = 4 * plan.num_rows
        blocks_begin = ids_begin + plan.num_tokens
        step_kernels.apply_new_blocks(packed, blocks_begin, len(self._new_blocks), self.tables)
        samples_begin = blocks_begin + self._new_blocks.size
        self._new_blocks = self._new_blocks[:0]
        max_kv = int(seq_lens.max(initial=0))
        tensors = self._output_tensors(plan.num_rows, self._padded_size(plan.num_tokens), max_kv)
        step_kernels.build_inputs(
            packed, plan.num_rows, plan.num_tokens, ids_begin, self.tables, self.last_sampled,
            block_size=self._block_size, writes=self.writes, **tensors,
        )  # fmt: skip
        groups = tuple(map(GroupBatch, tensors["block_table"], tensors["slot_mapping"]))
        batch = ForwardBatch(
            num_seqs=plan.num_rows, num_tokens=len(tensors["input_ids"]), num_decodes=num_decodes, max_seqlen_q=max_q,
            max_seqlen_k=max_kv, positions=tensors["positions"], cu_seqlens_q=tensors["cu_seqlens"],
            seq_lens=tensors["seq_lens"],
            logits_indices=packed[samples_begin : samples_begin + len(logits_indices)], groups=groups,
            cu_q_list=tuple(cu_q.tolist()), seq_lens_list=tuple(seq_lens.tolist()),
        )  # fmt: skip
        return StepInputs(tensors["input_ids"], batch)

    def store_sampled(self, slots: NDArray[np.int64], tokens: Int32) -> None:
        """Store the token that each slot sampled, from the host."""
        index = torch.from_numpy(slots).to(self._device)
        self.last_sampled.index_copy_(0, index, torch.from_numpy(tokens).to(self._device))

    def _output_tensors(self, rows: int, tokens: int, max_kv: int) -> dict[str, Tensor]:
        """Allocate the inputs of a step of `rows` rows and `tokens` tokens, padding included."""
        num_groups, width = len(self.tables), -(-max_kv // self._block_size)
        block_table = torch.zeros(num_groups, rows, width, dtype=torch.int32, device=self._device)
        return {
            "input_ids": self._empty(torch.int64, tokens), "positions": self._empty(torch.int64, tokens),
            "cu_seqlens": self._empty(torch.int32, rows + 1), "seq_lens": self._empty(torch.int32, rows),
            "slot_mapping": self._empty(torch.int64, num_groups, tokens), "block_table": block_table,
        }  # fmt: skip

    def _empty(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _write_new_blocks(self) -> None:
        if len(self._new_blocks):
            packed = self._staging.copy((self._new_blocks,))
            step_kernels.apply_new_blocks(packed, 0, len(self._new_blocks), self.tables)
            self._new_blocks = self._new_blocks[:0]
