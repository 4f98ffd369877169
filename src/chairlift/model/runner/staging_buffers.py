"""StagingBuffers: pinned host memory for the one copy of a step to the device, a few steps' worth in turn."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from chairlift.engine.step_plan import Int32


class Event(Protocol):
    """A point in a stream; torch.cuda.Event is one."""

    def record(self) -> None:
        """Put the point behind all work that the current stream has been given."""
        ...

    def synchronize(self) -> None:
        """Wait until the work before the point is done; returns at once for an event that was never recorded."""
        ...


class StagingBuffers:
    """Copies arrays to the device without waiting for it.

    A buffer is written again only after the copy from it is done, which is some steps later.

    Owns: the host buffers, and as many device buffers.
    """

    def __init__(
        self, device: torch.device, num_buffers: int, num_numbers: int, make_event: Callable[[], Event] | None = None
    ) -> None:
        """Allocate `num_buffers` pairs of buffers of int32 [num_numbers]; they grow where a step needs more."""
        self._device = device
        self._make_event = make_event or torch.cuda.Event
        self._is_pinned = device.type == "cuda"
        self._host = [self._host_buffer(num_numbers) for _ in range(num_buffers)]
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
            self._host[index] = self._host_buffer(2 * size)
            self._on_device[index] = torch.empty(2 * size, dtype=torch.int32, device=self._device)
        host, target = self._host[index], self._on_device[index]
        np.concatenate([part.ravel() for part in parts], out=host[:size].numpy(), casting="same_kind")
        target[:size].copy_(host[:size], non_blocking=True)
        event = self._events[index] = event or self._make_event()
        event.record()
        return target

    def _host_buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=self._is_pinned)
