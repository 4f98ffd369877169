"""SlotBlockTables against a slow reference model on random plans; order of updates; ids outside the vocabulary."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import LAST_SAMPLED, NewSequence, StepPlan
from chairlift.model.batch.input_batch import SlotBlockTables, StepInputs
from support_sampling import params
from support_step_plans import array, plan_of

CPU = torch.device("cpu")
VOCAB = 97


@dataclass
class ReferenceSequence:
    """A sequence of the reference model: its length, and a dict of blocks for each group."""

    length: int
    blocks: list[dict[int, int]]


@dataclass
class ReferenceTables:
    """Block tables as dicts, with loops; the reference for SlotBlockTables."""

    groups: int
    block_size: int
    sequences: dict[int, ReferenceSequence] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def check(self, plan: StepPlan, got: StepInputs) -> None:
        batch, token = got.batch, 0
        cu_q, ids, positions, slots = [0], [], [], [[] for _ in range(self.groups)]
        for row, slot in enumerate(plan.slots.tolist()):
            for offset in range(plan.num_new_tokens[row]):
                position = int(plan.start_positions[row]) + offset
                input_id = int(plan.input_ids[token])
                ids.append(self.last[slot] if input_id == LAST_SAMPLED else input_id)
                positions.append(position)
                for group in range(self.groups):
                    block = self.sequences[slot].blocks[group][position // self.block_size]
                    slots[group].append(block * self.block_size + position % self.block_size)
                token += 1
            cu_q.append(token)
        seq_lens = [int(a + b) for a, b in zip(plan.start_positions, plan.num_new_tokens, strict=True)]
        counts = plan.num_new_tokens.tolist()
        assert got.input_ids.tolist() == ids
        assert batch.positions.tolist() == positions
        assert batch.cu_seqlens_q.tolist() == list(batch.cu_q_list) == cu_q
        assert batch.seq_lens.tolist() == list(batch.seq_lens_list) == seq_lens
        assert batch.logits_indices.tolist() == [cu_q[row + 1] - 1 for row in plan.sample_rows.tolist()]
        assert (batch.num_seqs, batch.num_tokens) == (len(counts), token)
        assert (batch.max_seqlen_q, batch.max_seqlen_k) == (max(counts), max(seq_lens))
        assert batch.num_decodes == sum(count == 1 for count in counts)
        dtypes = [batch.positions.dtype, batch.cu_seqlens_q.dtype, batch.seq_lens.dtype, batch.logits_indices.dtype]
        assert [got.input_ids.dtype, *dtypes] == [torch.int64, torch.int64, torch.int32, torch.int32, torch.int32]
        for group in range(self.groups):
            assert batch.groups[group].slot_mapping.tolist() == slots[group]
            assert batch.groups[group].slot_mapping.dtype == torch.int64
            assert batch.groups[group].block_table.dtype == torch.int32
            table = batch.groups[group].block_table.tolist()
            for row, slot in enumerate(plan.slots.tolist()):
                for index in range(-(-seq_lens[row] // self.block_size)):
                    named = self.sequences[slot].blocks[group].get(index, 0)
                    assert table[row][index] == named


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_plans_give_the_arrays_of_the_reference_model(data: st.DataObject) -> None:
    max_slots, groups = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    block_size = data.draw(st.sampled_from([1, 2, 5, 16]))
    tables, model = SlotBlockTables(max_slots, groups, block_size, VOCAB), ReferenceTables(groups, block_size)
    next_block = 0
    for _ in range(data.draw(st.integers(1, 8))):
        released = tuple(
            slot for slot in list(model.sequences) if data.draw(st.booleans()) and data.draw(st.booleans())
        )
        for slot in released:
            del model.sequences[slot]
        admitted, new_blocks, rows = [], [], []
        for slot in range(max_slots):
            if slot not in model.sequences or data.draw(st.integers(0, 9)) == 0:
                start = data.draw(st.integers(0, 40))
                model.sequences[slot] = ReferenceSequence(start, [{} for _ in range(groups)])
                model.last.pop(slot, None)
                admitted.append(NewSequence(slot, (1,), 0, params()))
            elif data.draw(st.integers(0, 3)) == 0:
                continue
            sequence = model.sequences[slot]
            count = data.draw(st.sampled_from([1, 1, 2, 7, 30]))
            ids = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count))
            if slot in model.last and data.draw(st.booleans()):
                ids[0] = LAST_SAMPLED
            needed = -(-(sequence.length + count) // block_size)
            for group in range(groups):
                behind = sequence.length // block_size if group else 0
                for index in range(behind, needed):
                    if index not in sequence.blocks[group]:
                        sequence.blocks[group][index] = next_block
                        new_blocks.append((slot, group, index, next_block))
                        next_block += 1
            rows.append((slot, sequence.length, ids))
            sequence.length += count
        if not rows:
            continue
        rows.sort(key=lambda row: len(row[2]) > 1)
        sample_rows = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True))
        plan = plan_of(
            rows, released_slots=(*released, 999), new_sequences=tuple(admitted), sample_rows=array(*sample_rows),
            new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4),
        )  # fmt: skip
        tables.apply(plan)
        model.check(plan, tables.inputs(plan, CPU))
        sampled = array(*(data.draw(st.integers(0, VOCAB - 1)) for _ in sample_rows))
        tables.store_sampled(plan.slots[plan.sample_rows].astype(np.int64), sampled)
        for row, token in zip(sample_rows, sampled.tolist(), strict=True):
            model.last[rows[row][0]] = token


def test_a_slot_is_released_before_the_same_plan_reuses_it() -> None:
    tables = SlotBlockTables(2, 1, 4, VOCAB)
    tables.apply(plan_of([(0, 0, [1])], new_blocks=array([0, 0, 0, 5], [0, 0, 1, 6])))
    swapped = plan_of([(0, 0, [1, 2])], released_slots=(0,), new_sequences=(NewSequence(0, (1, 2), 0, params()),),
                      new_blocks=array([0, 0, 0, 9]))  # fmt: skip
    tables.apply(swapped)
    assert tables.inputs(swapped, CPU).batch.groups[0].slot_mapping.tolist() == [36, 37]
    stale = plan_of([(0, 4, [3])])
    with pytest.raises(AssertionError, match="no block"):
        tables.inputs(stale, CPU)


@pytest.mark.parametrize("token", [VOCAB, 2**31 - 1, -2])
def test_an_id_outside_the_vocabulary_is_rejected_with_both_numbers(token: int) -> None:
    tables = SlotBlockTables(1, 1, 4, VOCAB)
    plan = plan_of([(0, 0, [1, token])], new_blocks=array([0, 0, 0, 0]))
    tables.apply(plan)
    with pytest.raises(TokenOutOfRange, match=rf"{token} .* {VOCAB}"):
        tables.inputs(plan, CPU)


def test_rows_out_of_order_are_a_bug_of_the_scheduler() -> None:
    tables = SlotBlockTables(2, 1, 4, VOCAB)
    plan = plan_of([(0, 0, [1, 2]), (1, 0, [3])], new_blocks=array([0, 0, 0, 0], [1, 0, 0, 1]))
    tables.apply(plan)
    with pytest.raises(AssertionError, match="come first"):
        tables.inputs(plan, CPU)


def test_padding_writes_nowhere_and_belongs_to_no_sequence() -> None:
    tables = SlotBlockTables(2, 2, 4, VOCAB, padded=lambda count: count + 3)
    blocks = array([0, 0, 0, 5], [0, 1, 0, 6], [1, 0, 0, 7], [1, 1, 0, 8])
    plan = plan_of([(0, 0, [1]), (1, 0, [2, 3, 4, 5])], new_blocks=blocks)
    tables.apply(plan)
    inputs = tables.inputs(plan, CPU)
    batch = inputs.batch
    assert batch.num_tokens == len(inputs.input_ids) == len(batch.positions) == 8
    assert inputs.input_ids[5:].tolist() == [0, 0, 0] and batch.positions[5:].tolist() == [0, 0, 0]
    for group in batch.groups:
        assert group.slot_mapping[5:].tolist() == [-1, -1, -1] and (group.slot_mapping[:5] >= 0).all()
    assert batch.cu_q_list[-1] == 5 and int(batch.logits_indices.max()) == 4
