"""ResourceMonitor: ratios of CPU, memory and GPU over a window, missing values, and a process that computes."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.host import resource_monitor
from chairlift.core.host.gpu_reader import GpuReader, GpuUsage
from chairlift.core.host.memory_limits import MemoryLimit
from chairlift.core.host.process_tree import TreeUsage
from chairlift.core.host.resource_monitor import (
    SAMPLE_SECONDS,
    STALE_SECONDS,
    UNKNOWN,
    WINDOW_SECONDS,
    ResourceMonitor,
    ResourceUsage,
)
from support_nvml import FakeNvml
from support_process import wait_until

GIB = 2**30


@dataclass
class Machine:
    """A machine of 4 CPUs under a clock of its own."""

    clock: FakeClock = field(default_factory=FakeClock)
    tree: TreeUsage | None = field(default_factory=lambda: TreeUsage(100.0, GIB, frozenset(range(4))))
    limits: list[MemoryLimit] = field(default_factory=lambda: [MemoryLimit(8 * GIB, 6 * GIB, "MemTotal")])

    def monitor(self, **options: Any) -> ResourceMonitor:
        given: dict[str, Any] = {
            "clock": self.clock, "read_processes": lambda: self.tree, "read_limits": lambda: self.limits,
            "read_capacity": lambda cpus: float(len(cpus)) or None,
        }  # fmt: skip
        return ResourceMonitor(**(given | options))

    def run(self, monitor: ResourceMonitor, seconds: float, cpus: float) -> ResourceUsage:
        """Let the processes keep `cpus` CPUs busy for a time, with samples at the usual interval."""
        for _ in range(int(seconds / SAMPLE_SECONDS)):
            self.clock.advance(SAMPLE_SECONDS)
            assert self.tree is not None
            self.tree = TreeUsage(self.tree.cpu_seconds + cpus * SAMPLE_SECONDS, self.tree.memory_bytes, self.tree.cpus)
            monitor.measure()
        return monitor.usage


def test_the_cpu_use_is_that_of_the_last_seconds() -> None:
    machine = Machine()
    monitor = machine.monitor()
    assert monitor.measure().cpu_ratio is None, "one sample says nothing"
    assert machine.run(monitor, SAMPLE_SECONDS, 2.0).cpu_ratio == 0.5
    assert machine.run(monitor, WINDOW_SECONDS, 3.0).cpu_ratio == 0.75
    assert machine.run(monitor, WINDOW_SECONDS / 2, 0.0).cpu_ratio == pytest.approx(0.375, abs=0.13)
    assert machine.run(monitor, WINDOW_SECONDS, 0.0).cpu_ratio == 0.0
    assert machine.run(monitor, WINDOW_SECONDS, 4.5).cpu_ratio == 1.0, "clocks are read one after the other"


def test_a_thread_that_gets_no_cpu_for_long_still_has_a_window() -> None:
    machine = Machine()
    monitor = machine.monitor()
    monitor.measure()
    machine.clock.advance(3 * WINDOW_SECONDS)
    machine.tree = TreeUsage(100.0 + 3 * WINDOW_SECONDS, GIB, frozenset(range(4)))
    assert monitor.measure().cpu_ratio == 0.25


def test_a_process_that_took_its_time_away_begins_a_new_window() -> None:
    machine = Machine()
    monitor = machine.monitor()
    monitor.measure()
    machine.run(monitor, 4, 1.0)
    machine.tree = TreeUsage(3.0, GIB, frozenset(range(4)))
    machine.clock.advance(SAMPLE_SECONDS)
    assert monitor.measure().cpu_ratio is None
    assert machine.run(monitor, SAMPLE_SECONDS, 1.0).cpu_ratio == 0.25


def test_memory_counts_against_the_tightest_limit_and_the_fullest_one() -> None:
    machine = Machine()
    monitor = machine.monitor()
    assert (monitor.measure().memory_ratio, monitor.usage.host_memory_ratio) == (0.125, 0.75)
    machine.limits = [*machine.limits, MemoryLimit(2 * GIB, GIB, "cgroup a"), MemoryLimit(2**62, 0, "no limit")]
    assert (monitor.measure().memory_ratio, monitor.usage.host_memory_ratio) == (0.5, 0.75)
    machine.limits[1] = MemoryLimit(2 * GIB, 2 * GIB, "cgroup a")
    assert monitor.measure().host_memory_ratio == 1.0


def test_what_the_system_does_not_report_is_missing() -> None:
    machine = Machine(tree=None, limits=[])
    assert [machine.monitor().measure() for _ in range(2)] == [UNKNOWN] * 2
    machine.tree = TreeUsage(1.0, GIB, frozenset())
    monitor = machine.monitor()
    monitor.measure()
    assert machine.run(monitor, 4, 1.0) == UNKNOWN, "neither processors nor limits are known"


@pytest.mark.parametrize(
    ("gpus", "ratio", "memory"),
    [
        ([(0.5, 10, 40)], 0.5, 0.25), ([(0.5, 10, 40), (1.0, 30, 40)], 0.75, 0.75), ([(None, 10, 40)], None, 0.25),
        ([(0.5, None, None)], 0.5, None), ([(None, None, None), (0.25, 20, 40)], 0.25, 0.5), ([], None, None),
    ],
)  # fmt: skip
def test_gpus_report_their_mean_use_and_the_fullest_memory(
    gpus: list[tuple[float | None, int | None, int | None]], ratio: float | None, memory: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = tuple(
        GpuUsage(gpu=str(index), utilization_ratio=busy, memory_used_bytes=used, memory_total_bytes=total)
        for index, (busy, used, total) in enumerate(gpus)
    )
    monkeypatch.setattr(GpuReader, "read", lambda _: found)
    monitor = Machine().monitor(environ={})
    assert monitor.measure().gpus == (), "the engine has not started"
    monitor.watch_gpus("cuda:0")
    usage = monitor.measure()
    assert (usage.gpu_ratio, usage.gpu_memory_ratio, usage.gpus) == (ratio, memory, found)


def test_gpu_use_is_a_mean_over_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, busy = Machine(), [1.0, 0.0, None, 0.25]
    monkeypatch.setattr(GpuReader, "read", lambda _: (GpuUsage(gpu="0", utilization_ratio=busy.pop(0)),))
    monitor = machine.monitor(environ={})
    monitor.watch_gpus("cuda")
    ratios = []
    for _ in range(4):
        ratios.append(monitor.measure().gpu_ratio)
        machine.clock.advance(SAMPLE_SECONDS)
    assert ratios == [1.0, 0.5, None, 0.25], "a gap ends the window"


def test_a_replica_on_the_cpu_reports_no_gpu_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuReader, "read", lambda _: (GpuUsage(gpu="0", utilization_ratio=1.0),))
    monitor = Machine().monitor(environ={})
    for device in ("", "cpu", "mps"):
        monitor.watch_gpus(device)
    assert monitor.measure().gpu_ratio is None


def test_gpus_are_read_through_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_monitor, "GpuReader", lambda *given, **options: GpuReader(
        *given, **options, open_library=FakeNvml().open,
    ))  # fmt: skip
    monitor = Machine().monitor(environ={"CUDA_VISIBLE_DEVICES": "1"})
    monitor.watch_gpus("cuda:0")
    usage = monitor.measure()
    assert (usage.gpu_ratio, usage.gpu_memory_ratio, usage.gpus[0].name) == (0.75, 0.75, "NVIDIA H200")


def test_an_old_measurement_is_no_measurement() -> None:
    machine = Machine()
    monitor = machine.monitor()
    monitor.measure()
    machine.clock.advance(STALE_SECONDS)
    assert monitor.usage.memory_ratio == 0.125
    machine.clock.advance(0.1)
    assert monitor.usage == UNKNOWN


def in_thread(monitor: ResourceMonitor, until: Callable[[], bool]) -> None:
    before = threading.active_count()
    monitor.start()
    wait_until(until)
    monitor.stop()
    wait_until(lambda: threading.active_count() == before)


def test_a_thread_measures_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_monitor, "SAMPLE_SECONDS", 0.001)
    machine, num_calls = Machine(), [0]

    def read() -> TreeUsage | None:
        num_calls[0] += 1
        return machine.tree

    monitor = machine.monitor(read_processes=read)
    in_thread(monitor, lambda: num_calls[0] > 3)
    assert monitor.usage.memory_ratio == 0.125


def test_a_failure_is_logged_once_and_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource_monitor, "SAMPLE_SECONDS", 0.001)
    machine, num_calls = Machine(), [0]

    def read() -> TreeUsage | None:
        num_calls[0] += 1
        if num_calls[0] < 4:
            raise ValueError("a kernel with another format")
        return machine.tree

    monitor = machine.monitor(read_processes=read)
    with caplog.at_level(logging.ERROR):
        in_thread(monitor, lambda: monitor.usage.memory_ratio == 0.125)
    assert len(caplog.records) == 1 and "cannot be measured" in caplog.text


COMPUTE = """
import sys, time
sys.stdin.readline()
while time.process_time() < 0.4: pass
print(1, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no /proc")
def test_a_real_process_that_computes_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", COMPUTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        monitor = ResourceMonitor(child.pid, read_capacity=lambda _: 1.0)
        monitor.measure()
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        busy = monitor.measure()
        idle = ResourceMonitor(child.pid, read_capacity=lambda _: 1.0)
        idle.measure()
        time.sleep(0.1)
        after = idle.measure()
        child.stdin.close()
    assert busy.cpu_ratio is not None and after.cpu_ratio is not None
    assert after.cpu_ratio < 0.1 < busy.cpu_ratio
    assert busy.memory_ratio is not None and 0 < busy.memory_ratio < 0.5
    assert busy.host_memory_ratio is not None and busy.memory_ratio < busy.host_memory_ratio <= 1
