"""chosen_cpus, usable_cores: the processors on which the native kernels' threads run.

Processors may have cores of several speeds (Intel's since 2021, most of ARM). Performance cores come first, and cores
that are about half as fast or less have no thread unless more threads are asked for: all threads wait for the slowest
one at each barrier.
"""

import contextlib
import math
from pathlib import Path
from typing import NamedTuple

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.core.host.cpu_capacity import SYS_CPU, cpu_quota, one_cpu_per_core

ANYWHERE = -1

SHARED_WITH_OTHERS = 2
"""Up to this many usable processors, the kernels use all of them."""


SPEEDS = 8
"""Steps between 0 and the fastest core. Cores of one kind differ by a few percent in their highest frequency."""


class Core(NamedTuple):
    """A physical core that this process may use.

    Attributes:
        cpu: the number of one of its processors.
        speed: its speed in steps, SPEEDS for the fastest.
    """

    cpu: int
    speed: int


def chosen_cpus(threads: int | None) -> tuple[int, ...]:
    """Return the processor of each thread of a pool of this many; ANYWHERE if there are too few processors.

    Raises ConfigError for less than one thread.
    """
    cores = usable_cores()
    if threads is None:
        fast = sum(2 * core.speed > SPEEDS for core in cores)
        threads = fast if len(cores) <= SHARED_WITH_OTHERS or fast < len(cores) else fast - 1
    if threads < 1:
        raise ConfigError(f"cpu_threads must be at least 1, got {threads}", option="cpu_threads")
    # Pinned, some threads would share a processor, and all others would wait for these at each barrier.
    if threads > len(cores):
        return (ANYWHERE,) * threads
    return tuple(sorted(core.cpu for core in cores[:threads]))


def usable_cores(*, sys_cpu: Path = SYS_CPU, quota: float | None = None) -> tuple[Core, ...]:
    """Return the physical cores that this process may use, the best for a thread first; `quota` limits their number.

    Of equally fast ones the last comes first: the first core handles most interrupts.
    """
    cpus = one_cpu_per_core(usable_cpus(), sys_cpu)
    speeds = [_speed(sys_cpu / f"cpu{cpu}") for cpu in cpus]
    if None in speeds:
        speeds = [1] * len(cpus)
    fastest = max(speed or 1 for speed in speeds)
    cores = [Core(cpu, round(SPEEDS * (speed or 1) / fastest)) for cpu, speed in zip(cpus, speeds, strict=True)]
    cores.sort(key=lambda core: (core.speed, core.cpu), reverse=True)
    quota = cpu_quota() if quota is None else quota
    return tuple(cores if quota is None else cores[: max(1, math.floor(quota))])


def _speed(folder: Path) -> int | None:
    """Return the speed of a processor in a unit of its machine, None if the system does not say it."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):  # the first is ARM's
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return None
