"""DeviceStream: the order of a device's work, as the runner gives it; CudaStream: the current stream of a CUDA device.

    run(work) ─► run(work) ─► event.record() ─► run(work) ...     the device does one after the other, in this order
                                  ▲
                            event.synchronize(): the host waits until all work before the point is done

On a CUDA device `work` only enqueues kernels and copies, and returns. What it writes may be read on the host only after
an event that was recorded behind it, and host memory that it reads may be written again only then.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None:
        """Put the point behind all work that the stream has been given."""
        ...

    def synchronize(self) -> None:
        """Wait until the work before the point is done; returns at once for an event that was never recorded."""
        ...


class Graph(Protocol):
    """Work that was captured once and runs as often as wanted, with the arguments and addresses of its capture.

    Attributes:
        outputs: what the captured work returned; each replay writes there.
    """

    outputs: tuple[Tensor, ...]

    def replay(self) -> None:
        """Do the work again; to be called within DeviceStream.run."""
        ...


class DeviceStream(Protocol):
    """A device's work in order; see the module."""

    def run(self, work: Callable[[], object]) -> None:
        """Give the device work. Raises what it raises, torch.OutOfMemoryError among others."""
        ...

    def make_event(self) -> Event:
        """Return an event of this stream."""
        ...

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> Graph:
        """Capture work as a graph.

        The work runs once before, so that its kernels are compiled: it must do no harm at that moment.
        Raises RuntimeError if it cannot be captured.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all work is done."""
        ...


class CudaStream:
    """DeviceStream of the current CUDA stream of the calling thread."""

    def __init__(self) -> None:
        self._pool: Any = None  # the handle that graph_pool_handle returns
        self._side: Any = None  # a torch.cuda.Stream, for all captures: libraries keep memory for each stream they see

    def run(self, work: Callable[[], object]) -> None:
        """See DeviceStream."""
        work()

    def make_event(self) -> Event:
        """Return an event; a thread that waits for it takes no CPU time."""
        event: Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        return event

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> "CudaGraph":
        """See DeviceStream; all graphs share one pool of memory, so no two may run at once."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        current, side, graph = torch.cuda.current_stream(), self._side, torch.cuda.CUDAGraph()
        side.wait_stream(current)
        # torch.cuda.graph leaves its stream the current one if a capture cannot begin or end; this context does not.
        with torch.inference_mode(), torch.cuda.stream(side):
            try:
                work()
            finally:
                current.wait_stream(side)
            # Other threads, that of NCCL's watchdog for one, may call CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                outputs = work()
        return CudaGraph(graph, outputs)

    def synchronize(self) -> None:
        """See DeviceStream."""
        torch.cuda.current_stream().synchronize()


class CudaGraph:
    """Graph of a CudaStream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self._graph = graph
        self.outputs = outputs

    def replay(self) -> None:
        """See Graph."""
        self._graph.replay()
