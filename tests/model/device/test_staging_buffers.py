"""StagingBuffers: what is copied, and that no buffer is written before the copy from it is done."""

import numpy as np
import torch

from chairlift.model.device.staging_buffers import StagingBuffers, host_buffer
from support_device_stream import ImmediateStream, SimulatedStream

CPU = torch.device("cpu")


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_parts_lie_one_behind_the_other_whatever_their_shape() -> None:
    buffers = StagingBuffers(CPU, ImmediateStream(), 2, 16)
    copied = buffers.copy((numbers(1, 2), np.array([[3, 4], [5, 6]], np.int32), numbers(), numbers(7)))
    assert copied[:7].tolist() == [1, 2, 3, 4, 5, 6, 7] and copied.dtype == torch.int32


def test_a_buffer_is_written_again_only_after_its_own_copy() -> None:
    stream = SimulatedStream()
    buffers = StagingBuffers(CPU, stream, 3, 4)
    copies, seen = [], []

    def read(index: int) -> None:
        stream.run(lambda: seen.append(copies[index][0].item()))

    for step in range(7):
        copies.append(buffers.copy((numbers(step),)))
        read(step)
    first = [f"record {number}" for number in range(3)]
    later = [f"{what} {number}" for number in (0, 1, 2, 0) for what in ("wait", "record")]
    assert stream.log == first + later
    stream.synchronize()
    assert seen == list(range(7))  # each step's kernels have seen its own numbers
    assert len({copied.data_ptr() for copied in copies}) == 3


def test_a_larger_step_gets_larger_buffers_and_leaves_those_of_earlier_steps_alone() -> None:
    buffers = StagingBuffers(CPU, ImmediateStream(), 2, 2)
    small, large = buffers.copy((numbers(1, 2),)), buffers.copy((np.arange(100, dtype=np.int32),))
    assert small[:2].tolist() == [1, 2] and large[:100].tolist() == list(range(100))
    assert buffers.copy((numbers(8, 9),))[:2].tolist() == [8, 9] and large[99].item() == 99


def test_host_memory_has_the_size_that_is_asked_for() -> None:
    assert host_buffer(5, CPU).shape == (5,)
