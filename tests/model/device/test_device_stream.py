"""CudaStream: the calls of CUDA that it makes, in order, by a stand-in for torch.cuda."""

from typing import Any

import pytest
import torch

from chairlift.model.device.device_stream import CudaStream


class RecordedCuda:
    """Stands in for torch.cuda: writes each call into a log."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stream_name = "main"
        self.num_streams = 0
        self.fails_to_capture = False
        self.OutOfMemoryError = torch.OutOfMemoryError
        self.Stream = self.make_stream
        self.CUDAGraph = lambda: RecordedGraph(self)
        self.Event = self.make_event

    def graph_pool_handle(self) -> tuple[int, int]:
        self.log.append("pool")
        return (0, 1)

    def current_stream(self) -> "RecordedStream":
        return RecordedStream(self, self.stream_name)

    def stream(self, stream: "RecordedStream") -> "Within":
        return Within(self, stream.name)

    def make_stream(self) -> "RecordedStream":
        self.num_streams += 1
        return RecordedStream(self, f"side {self.num_streams}")

    def graph(
        self, graph: object, *, pool: object, stream: "RecordedStream", capture_error_mode: str
    ) -> "Within":  # fmt: skip
        self.log.append(f"capture in pool {pool} by {capture_error_mode}")
        return Capture(self, stream.name)

    def make_event(self, *, blocking: bool) -> object:
        self.log.append(f"event blocking={blocking}")
        return object()


class RecordedStream:
    def __init__(self, cuda: RecordedCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: "RecordedStream") -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.cuda.log.append(f"host waits for {self.name}")


class RecordedGraph:
    def __init__(self, cuda: RecordedCuda) -> None:
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.log.append("replay")


class Within:
    def __init__(self, cuda: RecordedCuda, name: str) -> None:
        self.cuda, self.name, self.before = cuda, name, cuda.stream_name

    def __enter__(self) -> None:
        self.cuda.stream_name = self.name

    def __exit__(self, *_: Any) -> None:
        self.cuda.stream_name = self.before


class Capture(Within):
    """As torch.cuda.graph: if the capture cannot end, its stream stays the current one."""

    def __exit__(self, *_: Any) -> None:
        if self.cuda.fails_to_capture:
            raise RuntimeError("operation failed due to a previous error during capture")
        super().__exit__()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> RecordedCuda:
    made = RecordedCuda()
    monkeypatch.setattr(torch, "cuda", made)
    return made


def test_work_is_done_once_on_a_side_stream_before_it_is_captured_in_the_pool_of_all_graphs(
    cuda: RecordedCuda,
) -> None:
    stream = CudaStream()

    def work() -> tuple[torch.Tensor, ...]:
        cuda.log.append(f"work on {cuda.stream_name}")
        return (torch.ones(2),)

    graphs = [stream.capture(work) for _ in range(2)]
    once = [
        "side 1 waits for main", "work on side 1", "main waits for side 1",
        "capture in pool (0, 1) by thread_local", "work on side 1",
    ]  # fmt: skip
    assert cuda.log == ["pool", *once, *once]
    graphs[1].replay()
    assert cuda.log[-1] == "replay" and graphs[0].outputs[0].tolist() == [1, 1]


def test_after_a_capture_that_failed_work_goes_to_the_stream_from_before(cuda: RecordedCuda) -> None:
    cuda.fails_to_capture = True
    with pytest.raises(RuntimeError, match="during capture"):
        CudaStream().capture(lambda: (torch.ones(2),))
    assert cuda.stream_name == "main"


def test_what_follows_work_that_failed_before_its_capture_waits_for_what_it_began(cuda: RecordedCuda) -> None:
    def fails() -> tuple[torch.Tensor, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        CudaStream().capture(fails)
    assert cuda.log == ["pool", "side 1 waits for main", "main waits for side 1"] and cuda.stream_name == "main"


def test_work_is_given_at_once_and_waited_for_where_asked(cuda: RecordedCuda) -> None:
    stream = CudaStream()
    stream.make_event()
    stream.run(lambda: cuda.log.append("work"))
    stream.synchronize()
    assert cuda.log == ["event blocking=True", "work", "host waits for main"]
    with pytest.raises(torch.OutOfMemoryError):
        stream.run(lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")))
