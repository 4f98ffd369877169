"""ResultRing: each step's tokens are those of its own time, and no buffer is written before it was read or is done."""

import numpy as np
import torch

from chairlift.model.sampling.device.fixed_point_sampling import SampleBuffers
from chairlift.model.sampling.device.result_ring import NUM_RESULTS, ResultRing
from support_device_stream import SimulatedStream

CPU = torch.device("cpu")


def test_results_are_those_of_their_step_though_the_device_works_late() -> None:
    stream, buffers = SimulatedStream(), SampleBuffers.empty(4, 9, CPU)
    ring = ResultRing(len(buffers.results), CPU, stream)
    indices = []
    for step in range(2):
        stream.run(lambda step=step: (buffers.tokens.fill_(step + 5), buffers.max_logits.fill_(step + 0.5)))
        indices.append(ring.copy(buffers.results))
    assert stream.done == 0
    for step, index in enumerate(indices):
        tokens, max_logits = ring.read(index, np.array([2, 0]))
        assert tokens.tolist() == [step + 5] * 2 and max_logits.tolist() == [[step + 0.5] * 2] * 2
        assert stream.done == 2 * (step + 1)


def test_what_was_read_does_not_change_when_its_buffer_is_used_again() -> None:
    stream, buffers = SimulatedStream(), SampleBuffers.empty(1, 1, CPU)
    ring = ResultRing(len(buffers.results), CPU, stream)
    read = []
    for step in range(3 * NUM_RESULTS):
        stream.run(lambda step=step: buffers.tokens.fill_(step))
        read.append(ring.read(ring.copy(buffers.results), np.array([0]))[0])
    assert [int(tokens[0]) for tokens in read] == list(range(3 * NUM_RESULTS))


def test_a_buffer_that_was_not_read_is_waited_for() -> None:
    stream, buffers = SimulatedStream(), SampleBuffers.empty(1, 1, CPU)
    ring = ResultRing(len(buffers.results), CPU, stream)
    for _ in range(NUM_RESULTS + 1):
        ring.copy(buffers.results)
    assert stream.done == 1 and stream.log[-2:] == ["wait 0", "record 0"]
