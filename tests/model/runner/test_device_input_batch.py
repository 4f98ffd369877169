"""DeviceInputBatch against SlotBlockTables on random plans: by Triton's interpreter, on the CPU."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import LAST_SAMPLED, StepPlan
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.runner.device_input_batch import DeviceInputBatch, InputTensors
from support_device_stream import ImmediateStream, SimulatedStream
from support_step_plans import array, plan_of

CPU = torch.device("cpu")
VOCAB, SLOTS, MAX_LENGTH = 97, 6, 600


def device_batch(groups: int, block_size: int, **more: object) -> DeviceInputBatch:
    return DeviceInputBatch(
        SLOTS, groups, block_size, VOCAB, max_model_len=MAX_LENGTH, device=CPU,
        **{"stream": ImmediateStream()} | more,
    )  # fmt: skip


class RandomPlans:
    """Makes plans of sequences that begin, go on, release their slot, and get random blocks."""

    def __init__(self, random: Random, groups: int, block_size: int) -> None:
        self.random, self.groups, self.block_size = random, groups, block_size
        self.lengths: dict[int, int] = {}

    def next(self, step_id: int) -> StepPlan:
        random = self.random
        released = [slot for slot in list(self.lengths) if random.random() < 0.2]
        for slot in released:
            del self.lengths[slot]
        chosen = random.sample(range(SLOTS), random.randint(1, SLOTS))
        rows, blocks = [], []
        for slot in chosen:
            start = self.lengths.get(slot, 0)
            count = min(MAX_LENGTH - start, random.choice((1, 1, 1, 2, 7, 40, 300)))
            if not count:
                continue
            ids = [random.randrange(VOCAB) for _ in range(count)]
            if start and random.random() < 0.7:
                ids[0] = LAST_SAMPLED
            first = -(-start // self.block_size)
            for index in range(first, -(-(start + count) // self.block_size)):
                blocks += [(slot, group, index, random.randrange(10_000)) for group in range(self.groups)]
            self.lengths[slot] = start + count
            rows.append((slot, start, ids))
        rows.sort(key=lambda row: len(row[2]) != 1)
        samples = sorted(random.sample(range(len(rows)), random.randint(0, len(rows))))
        return plan_of(
            rows, step_id=step_id, released_slots=tuple(released), sample_rows=array(*samples),
            new_blocks=np.array(blocks, np.int32).reshape(-1, 4),
        )  # fmt: skip


def check_equal(found: ForwardBatch, expected: ForwardBatch, block_size: int) -> None:
    for name in ("positions", "cu_seqlens_q", "seq_lens", "logits_indices"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype and one.tolist() == other.tolist(), name
    plain = ("num_seqs", "num_tokens", "num_decodes", "max_seqlen_q", "max_seqlen_k", "cu_q_list", "seq_lens_list")
    assert all(getattr(found, name) == getattr(expected, name) for name in plain)
    for one, other in zip(found.groups, expected.groups, strict=True):
        assert one.slot_mapping.dtype == torch.int64 and one.slot_mapping.tolist() == other.slot_mapping.tolist()
        for row, length in enumerate(expected.seq_lens_list):
            reached = -(-length // block_size)
            assert one.block_table[row, :reached].tolist() == other.block_table[row, :reached].tolist()


@pytest.mark.share(1)
@pytest.mark.parametrize(("groups", "block_size", "writes"), [(1, 16, True), (2, 1, True), (3, 64, False)])
def test_inputs_are_those_that_the_host_makes(groups: int, block_size: int, writes: bool) -> None:
    random = Random(groups)
    plans = RandomPlans(random, groups, block_size)

    def padded(count: int) -> int:
        return count + 3 if writes else count

    host = SlotBlockTables(SLOTS, groups, block_size, VOCAB, writes=writes, padded=padded)
    device = device_batch(groups, block_size, writes=writes, padded=padded)
    for step_id in range(12):
        plan = plans.next(step_id)
        if not plan.num_rows:
            continue
        host.apply(plan)
        device.apply(plan)
        expected, found = host.inputs(plan, CPU), device.inputs(plan, CPU)
        assert found.input_ids.dtype == torch.int64 and found.input_ids.tolist() == expected.input_ids.tolist()
        check_equal(found.batch, expected.batch, block_size)
        slots = plan.slots[plan.sample_rows].astype(np.int64)
        tokens = np.array([random.randrange(VOCAB) for _ in slots], np.int32)
        host.store_sampled(slots, tokens)
        device.store_sampled(slots, tokens)


def test_a_token_that_only_the_device_knows_is_the_input_of_the_next_step() -> None:
    batch = device_batch(1, 4)
    first = plan_of([(2, 0, [5, 6])], new_blocks=array([2, 0, 0, 7]))
    batch.apply(first)
    batch.inputs(first, CPU)
    batch.last_sampled[2] = 41  # as a sampler on the device writes it
    second = plan_of([(2, 2, [LAST_SAMPLED])])
    batch.apply(second)
    inputs = batch.inputs(second, CPU)
    assert inputs.input_ids.tolist() == [41] and inputs.batch.groups[0].slot_mapping.tolist() == [7 * 4 + 2]


def test_blocks_of_a_plan_without_rows_are_there_in_the_next_step() -> None:
    batch = device_batch(1, 4)
    batch.apply(replace(plan_of([]), new_blocks=array([1, 0, 0, 9])))
    plan = plan_of([(1, 0, [3])])
    batch.apply(plan)
    assert batch.inputs(plan, CPU).batch.groups[0].slot_mapping.tolist() == [36]


@pytest.mark.parametrize("bad", [VOCAB, -2, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_refused(bad: int) -> None:
    batch = device_batch(1, 4)
    plan = plan_of([(0, 0, [1, bad])], new_blocks=array([0, 0, 0, 1]))
    batch.apply(plan)
    with pytest.raises(TokenOutOfRange):
        batch.inputs(plan, CPU)


def test_rows_beyond_those_of_a_step_become_padding_and_each_row_has_the_slot_it_samples_for() -> None:
    stream = SimulatedStream()
    batch = device_batch(2, 4, stream=stream)
    tensors = InputTensors.empty(2, 5, 5, 3, CPU)
    tensors.make_padding()
    plan = plan_of([(2, 0, [5]), (4, 0, [6])], new_blocks=array([2, 0, 0, 7], [2, 1, 0, 8], [4, 0, 0, 1], [4, 1, 0, 3]))
    for rows, slots in ((5, [-1, 4]), (3, [2, -1])):
        batch.apply(plan)
        batch.fill(plan, tensors.first(rows), array(*slots))
        stream.synchronize()
        assert tensors.sample_slots[:rows].tolist() == slots + [-1] * (rows - 2)
        assert tensors.seq_lens[:rows].tolist() == [1, 1] + [0] * (rows - 2)
        assert tensors.cu_seqlens[: rows + 1].tolist() == [0, 1, 2] + [2] * (rows - 2)
        assert tensors.slot_mapping[:, :rows].tolist() == [
            [28, 4] + [-1] * (rows - 2), [32, 12] + [-1] * (rows - 2)
        ]  # fmt: skip
        assert tensors.input_ids[:rows].tolist() == [5, 6] + [0] * (rows - 2)
