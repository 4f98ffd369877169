"""SimulatedStream: a device that does nothing until the host waits for it, and then all work in order.

It stands in for CUDA: host memory is read and written at the last moment that CUDA allows. Who reads a result before
its event, or writes a buffer that a copy still reads, gets other tokens.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

Work = Callable[[], object]


class SimulatedEvent:
    """A point in a SimulatedStream."""

    def __init__(self, stream: "SimulatedStream", number: int) -> None:
        self.stream, self.number, self.point = stream, number, 0

    def record(self) -> None:
        self.point = self.stream.given
        self.stream.log.append(f"record {self.number}")

    def synchronize(self) -> None:
        self.stream.log.append(f"wait {self.number}")
        self.stream.do(self.point)


class SimulatedGraph:
    """Captured work: a replay does it again, and writes to the outputs of the capture."""

    def __init__(self, stream: "SimulatedStream", work: Callable[[], tuple[Tensor, ...]], number: int) -> None:
        self.stream, self.work, self.number = stream, work, number
        self.outputs = work()
        for output in self.outputs:
            output.fill_(torch.nan)  # a capture computes nothing

    def replay(self) -> None:
        self.stream.log.append(f"replay {self.number}")
        for output, value in zip(self.outputs, self.work(), strict=True):
            output.copy_(value)


class SimulatedStream:
    """A DeviceStream (model/device/device_stream.py).

    Attributes:
        log: what the device did and what the host did with events, in order.
        given, done: numbers of pieces of work.
        num_graphs: graphs captured.
        synchronized: times that the host waited for all work.
        fails_to_capture: whether a capture raises.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.given = self.done = self.num_graphs = self.num_events = self.synchronized = 0
        self.fails_to_capture = False
        self._queue: deque[Work] = deque()

    def run(self, work: Work) -> None:
        self._queue.append(work)
        self.given += 1

    def make_event(self) -> SimulatedEvent:
        self.num_events += 1
        return SimulatedEvent(self, self.num_events - 1)

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> SimulatedGraph:
        self.do(self.given)
        with torch.inference_mode():
            work()
            if self.fails_to_capture:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.num_graphs += 1
            return SimulatedGraph(self, work, self.num_graphs - 1)

    def synchronize(self) -> None:
        self.synchronized += 1
        self.do(self.given)

    def do(self, point: int) -> None:
        """Do the work up to a point."""
        with torch.inference_mode():
            while self.done < point:
                self.done += 1
                self._queue.popleft()()


class ImmediateStream(SimulatedStream):
    """A SimulatedStream that does work as soon as it is given, like a fast device."""

    def run(self, work: Work) -> None:
        super().run(work)
        self.do(self.given)
