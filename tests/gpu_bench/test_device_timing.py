"""device_timing.py: calls are timed by the host's clock on a CPU and by events on a GPU; peaks count what is done."""

import itertools
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_bench import device_timing
from gpu_bench.device_timing import REPEATS, WARM_UPS, DeviceTimer, copy_bandwidth, device_facts, gemm_peak

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_the_median_of_timed_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(device_timing.time, "perf_counter", lambda: next(moments))
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


def test_peaks_count_bytes_read_and_written_and_two_operations_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_a_second(timer: DeviceTimer, function: Callable[[], object], repeats: int = REPEATS) -> float:
        result: Any = function()
        assert result.isfinite().all()
        return 0.5

    monkeypatch.setattr(DeviceTimer, "seconds", half_a_second)
    assert copy_bandwidth(DeviceTimer(CPU), 1000) == 4000.0
    assert gemm_peak(DeviceTimer(CPU), 16) == 2 * 16**3 / 0.5


def test_facts_of_a_cpu_have_no_driver() -> None:
    facts = device_facts(CPU)
    assert facts["type"] == "cpu" and facts["driver"] is None and facts["torch"] == torch.__version__


@pytest.mark.parametrize("driver", ["580.65.06", None])
def test_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, driver: str | None) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150, multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def run(command: list[str], **options: Any) -> Any:
        if driver is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=f"{driver}\n{driver}\n")

    monkeypatch.setattr(subprocess, "run", run)
    facts = device_facts(CUDA)
    assert (facts["name"], facts["driver"], facts["compute_capability"]) == ("NVIDIA H200", driver, "9.0")
