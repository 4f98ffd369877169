"""ResultRing: pinned host memory to which a device copies the tokens of its steps, a few steps' worth in turn."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.engine.step_plan import Int32
from chairlift.model.device.device_stream import DeviceStream
from chairlift.model.device.staging_buffers import host_buffer
from chairlift.model.sampling.device.fixed_point_sampling import split_results

NUM_RESULTS = 3
"""Steps whose results may lie on the host: two in flight, and one that was discarded while the device computes it."""


class ResultRing:
    """Copies results to the host behind the work that makes them, and reads them once they are there.

    Owns: the host buffers, and an event for each.
    """

    def __init__(self, num_numbers: int, device: torch.device, stream: DeviceStream) -> None:
        """Allocate buffers of int32 [num_numbers], the size of SampleBuffers.results."""
        self._stream = stream
        self._host = [host_buffer(num_numbers, device) for _ in range(NUM_RESULTS)]
        self._events = [stream.make_event() for _ in range(NUM_RESULTS)]
        self._next = 0

    def copy(self, results: Tensor) -> int:
        """Have SampleBuffers.results copied to the host; returns the buffer's index, for `read`."""
        index = self._next
        self._next = (index + 1) % NUM_RESULTS
        self._events[index].synchronize()  # of a step that was not read; long done for all others
        host = self._host[index]
        self._stream.run(lambda: host.copy_(results, non_blocking=True))
        self._events[index].record()
        return index

    def read(self, index: int, rows: NDArray[np.int64]) -> tuple[Int32, NDArray[np.float32]]:
        """Wait for a copy; returns tokens int32 [R] and largest logits float32 [R, 2] of R of its rows."""
        self._events[index].synchronize()
        tokens, max_logits = split_results(self._host[index])
        return tokens.numpy()[rows], max_logits.numpy()[rows]
