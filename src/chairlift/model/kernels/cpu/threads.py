"""ThreadPool: the native kernels' threads, pinned to processors.

    usable = processors of the affinity mask, one per physical core, at most as many as the cgroup quota allows

With more than two usable processors, the kernels leave one to the API process and the engine's Python code.
"""

import ctypes
import math
from functools import cache
from pathlib import Path

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.core.host.cpu_capacity import SYS_CPU, cpu_quota, one_cpu_per_core
from chairlift.model.kernels.cpu.library import load

ANYWHERE = -1

SHARED_WITH_OTHERS = 2
"""Up to this many usable processors, the kernels use all of them."""


class ThreadPool:
    """Threads that are pinned to processors. The calling thread is the first of them; concurrent callers wait.

    Attributes:
        cpus: the processor of each thread, or ANYWHERE.
        handle: the library's pool.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        """Start the threads. Raises ConfigError if they cannot be started."""
        self.cpus = cpus
        self._native = load()
        self.handle = self._native.pool_new((ctypes.c_int32 * len(cpus))(*cpus), len(cpus))
        if not self.handle:
            raise ConfigError(f"cannot start {len(cpus)} threads", option="cpu_threads")

    def close(self) -> None:
        """End the threads. The pool cannot be used afterwards."""
        handle, self.handle = self.handle, None
        if handle:
            self._native.pool_free(handle)


@cache
def get_thread_pool(threads: int | None) -> ThreadPool:
    """Return the process's pool of this many threads; None chooses the number for this machine."""
    return ThreadPool(chosen_cpus(threads))


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
