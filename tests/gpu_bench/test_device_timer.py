"""DeviceTimer: medians, by the host's clock and by events."""

import itertools

import pytest
import torch

from gpu_bench import device_timer
from gpu_bench.device_timer import WARM_UPS, DeviceTimer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_the_median_of_timed_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(device_timer.time, "perf_counter", lambda: next(moments))
    calls: list[int] = []
    assert DeviceTimer(CPU).seconds(lambda: calls.append(1), repeats=3) == 2.0
    assert len(calls) == WARM_UPS + 3


def test_a_gpu_is_timed_by_events_around_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    numbers = itertools.count()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.number = next(numbers)

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, end: "Event") -> float:
            assert log[-1] == "synchronize" and end.number == self.number + 1
            return 4.0 * end.number  # milliseconds: 4, 12, 20

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    assert DeviceTimer(CUDA).seconds(lambda: log.append("call"), repeats=3) == 0.012
    assert log == ["call"] * WARM_UPS + ["event", "call", "event"] * 3 + ["synchronize"]
