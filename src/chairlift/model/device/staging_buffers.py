"""StagingBuffers: pinned host memory for the one copy of a step to the device, a few steps' worth in turn."""

import numpy as np
import torch
from torch import Tensor

from chairlift.engine.step_plan import Int32
from chairlift.model.device.device_stream import DeviceStream, Event


class StagingBuffers:
    """Copies arrays to the device without waiting for it.

    A buffer is written again only after the copy from it is done, which is some steps later.

    Owns: the host buffers, and as many device buffers.
    """

    def __init__(self, device: torch.device, stream: DeviceStream, num_buffers: int, num_numbers: int) -> None:
        """Allocate `num_buffers` pairs of buffers of int32 [num_numbers]; they grow where a step needs more."""
        self._device = device
        self._stream = stream
        self._host = [host_buffer(num_numbers, device) for _ in range(num_buffers)]
        self._on_device = [torch.empty(num_numbers, dtype=torch.int32, device=device) for _ in range(num_buffers)]
        self._events: list[Event | None] = [None] * num_buffers
        self._next = 0

    def copy(self, parts: tuple[Int32, ...]) -> Tensor:
        """Copy arrays of int32, one behind the other; returns the device buffer, valid until its turn comes again."""
        index, size = self._next, sum(part.size for part in parts)
        self._next = (index + 1) % len(self._host)
        if (event := self._events[index]) is not None:
            event.synchronize()
        if size > len(self._host[index]):
            self._host[index] = host_buffer(2 * size, self._device)
            self._on_device[index] = torch.empty(2 * size, dtype=torch.int32, device=self._device)
        host, target = self._host[index], self._on_device[index]
        np.concatenate([part.ravel() for part in parts], out=host[:size].numpy(), casting="same_kind")
        self._stream.run(lambda: target[:size].copy_(host[:size], non_blocking=True))
        event = self._events[index] = event or self._stream.make_event()
        event.record()
        return target


def host_buffer(size: int, device: torch.device) -> Tensor:
    """Return host memory, int32 [size]: pinned for a CUDA device, which can copy it without the host."""
    return torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
