"""ResourceMonitor: how much of its CPUs, memory and GPUs a replica uses, measured in a thread of its own.

    CPU    = CPU time of the server, the engine and their children in the last seconds / what their CPUs allow
    memory = resident memory of these processes / the tightest of host and cgroup limits
    GPU    = mean share of the time in which its GPUs computed; memory of the fullest one

The replica's ratios leave out what other programs of the machine use: with several replicas on one host, a number of
the host would rise with each replica that the autoscaler starts because of it.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.host.cpu_capacity import cpu_capacity
from chairlift.core.host.gpu_reader import GpuReader, GpuUsage
from chairlift.core.host.memory_limits import MemoryLimit, memory_limits
from chairlift.core.host.process_tree import ProcessTree, TreeUsage

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 2.0
WINDOW_SECONDS = 6.0
"""Time over which CPU and GPU use are averaged."""

STALE_SECONDS = 20.0
"""Age at which a measurement is missing data: the driver of a GPU can hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """What a replica uses, each ratio from 0 to 1; None where the system does not report it.

    Attributes:
        cpu_ratio: share of the CPUs on which it may run; a physical core counts once.
        memory_ratio: its own resident memory by the tightest limit.
        host_memory_ratio: memory that all processes use, of the host or of the cgroup that is fullest.
        gpu_ratio: share of the time in which its GPUs compute, on average.
        gpu_memory_ratio: share of the memory of its fullest GPU, used by any process.
        gpus: its GPUs.
    """

    cpu_ratio: float | None = None
    memory_ratio: float | None = None
    host_memory_ratio: float | None = None
    gpu_ratio: float | None = None
    gpu_memory_ratio: float | None = None
    gpus: tuple[GpuUsage, ...] = ()


UNKNOWN = ResourceUsage()


class ResourceMonitor:
    """Measures the process `pid` and its descendants. `usage` may be read by any thread."""

    def __init__(
        self, pid: int | None = None, *, environ: Mapping[str, str] = os.environ, clock: Clock | None = None,
        read_processes: Callable[[], TreeUsage | None] | None = None,
        read_limits: Callable[[], Sequence[MemoryLimit]] = memory_limits,
        read_capacity: Callable[[frozenset[int]], float | None] = cpu_capacity,
    ) -> None:  # fmt: skip
        """Measure this process unless `pid` says another one."""
        self._environ, self._clock = environ, clock or SystemClock()
        self._read_processes = read_processes or ProcessTree(os.getpid() if pid is None else pid).read
        self._read_limits, self._read_capacity = read_limits, read_capacity
        self._read_gpus: Callable[[], tuple[GpuUsage, ...]] = tuple
        self._cpu_seconds: deque[tuple[float, float]] = deque()
        self._gpu_ratios: deque[tuple[float, float]] = deque()
        self._measured = UNKNOWN
        self._measured_at = 0.0
        self._stopped = threading.Event()

    def watch_gpus(self, device: str) -> None:
        """Measure the GPU of this torch device from now on, if it is one of NVIDIA's."""
        if device.partition(":")[0] == "cuda":
            self._read_gpus = GpuReader(device, self._environ, clock=self._clock).read

    def start(self) -> None:
        """Measure every SAMPLE_SECONDS until stop()."""
        threading.Thread(target=self._run, name="chairlift-resources", daemon=True).start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._stopped.set()

    @property
    def usage(self) -> ResourceUsage:
        """The last measurement, without any number if it is too old."""
        return self._measured if self._clock.now() - self._measured_at <= STALE_SECONDS else UNKNOWN

    def measure(self) -> ResourceUsage:
        """Measure now; the first call cannot know the CPU use."""
        now, tree, limits, gpus = self._clock.now(), self._read_processes(), self._read_limits(), self._read_gpus()
        self._measured = ResourceUsage(
            cpu_ratio=self._cpu_ratio(now, tree),
            memory_ratio=None if tree is None else _ratio(tree.memory_bytes, min(_sizes(limits), default=0)),
            host_memory_ratio=max((_ratio(each.used_bytes, each.num_bytes) or 0.0 for each in limits), default=None),
            gpu_ratio=self._gpu_ratio(now, gpus),
            gpu_memory_ratio=max((each for each in map(_gpu_memory_ratio, gpus) if each is not None), default=None),
            gpus=gpus,
        )
        self._measured_at = now
        return self._measured

    def _run(self) -> None:
        is_failing = False
        while not self._stopped.is_set():
            try:
                self.measure()
                is_failing = False
            except Exception:
                if not is_failing:  # log only the first of a series of failures
                    log.exception("the use of CPUs and memory cannot be measured")
                is_failing = True
            self._stopped.wait(SAMPLE_SECONDS)

    def _cpu_ratio(self, now: float, tree: TreeUsage | None) -> float | None:
        samples = self._cpu_seconds
        if tree is None or (samples and tree.cpu_seconds < samples[-1][1]):  # a process that ended took its time away
            samples.clear()
        if tree is None:
            return None
        samples.append((now, tree.cpu_seconds))
        _drop_old(samples, now)
        (then, before), capacity = samples[0], self._read_capacity(tree.cpus)
        if now <= then or capacity is None:
            return None
        return _ratio(tree.cpu_seconds - before, (now - then) * capacity)

    def _gpu_ratio(self, now: float, gpus: Sequence[GpuUsage]) -> float | None:
        ratios = [each.utilization_ratio for each in gpus if each.utilization_ratio is not None]
        if not ratios:
            self._gpu_ratios.clear()
            return None
        self._gpu_ratios.append((now, sum(ratios) / len(ratios)))
        _drop_old(self._gpu_ratios, now)
        return _ratio(sum(ratio for _, ratio in self._gpu_ratios), len(self._gpu_ratios))


def _drop_old(samples: deque[tuple[float, float]], now: float) -> None:
    while len(samples) > 2 and now - samples[1][0] >= WINDOW_SECONDS:  # two samples stay however far apart they are
        samples.popleft()


def _sizes(limits: Sequence[MemoryLimit]) -> list[int]:
    return [each.num_bytes for each in limits if each.num_bytes]


def _ratio(part: float, whole: float) -> float | None:
    """Return a share from 0 to 1, or None of nothing; clocks and pages are read one after the other."""
    return round(min(1.0, max(0.0, part / whole)), 4) if whole else None


def _gpu_memory_ratio(gpu: GpuUsage) -> float | None:
    if gpu.memory_used_bytes is None or gpu.memory_total_bytes is None:
        return None
    return _ratio(gpu.memory_used_bytes, gpu.memory_total_bytes)
