"""chosen_cpus, usable_cores: the processors on which the native kernels' threads run."""

import math
from pathlib import Path

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.core.host.cpu_capacity import SYS_CPU, cpu_quota, one_cpu_per_core

ANYWHERE = -1

SHARED_WITH_OTHERS = 2
"""Up to this many usable processors, the kernels use all of them."""


def chosen_cpus(threads: int | None) -> tuple[int, ...]:
    """Return the processor of each thread of a pool of this many; ANYWHERE if there are too few processors.

    Raises ConfigError for less than one thread.
    """
    cores = usable_cores()
    if threads is None:
        threads = len(cores) if len(cores) <= SHARED_WITH_OTHERS else len(cores) - 1
    if threads < 1:
        raise ConfigError(f"cpu_threads must be at least 1, got {threads}", option="cpu_threads")
    # Pinned, some threads would share a processor, and all others would wait for these at each barrier.
    if threads > len(cores):
        return (ANYWHERE,) * threads
    return cores[-threads:]  # the first core handles most interrupts


def usable_cores(*, sys_cpu: Path = SYS_CPU, quota: float | None = None) -> tuple[int, ...]:
    """Return one processor per physical core that this process may use, ascending; `quota` limits their number."""
    cores = one_cpu_per_core(usable_cpus(), sys_cpu)
    quota = cpu_quota() if quota is None else quota
    return cores if quota is None else cores[: max(1, math.floor(quota))]
