"""ThreadPool: the native kernels' threads, pinned to processors.

    usable = processors of the affinity mask, one per physical core, at most as many as the cgroup quota allows

With more than two usable processors, the kernels leave one to the API process and the engine's Python code.
"""

import ctypes
import os

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from chairlift.model.kernels.cpu.library import load


class ThreadPool:
    """Threads that are pinned to processors. The calling thread is the first of them; concurrent callers wait.

    Attributes:
        cpus: the processor of each thread, or ANYWHERE.
        num_threads: how many of the threads there are now.
        handle: the library's pool.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        """Start the threads. Raises ConfigError if they cannot be started."""
        self.cpus, self.num_threads = cpus, len(cpus)
        self._native = load()
        self.handle = self._native.pool_new((ctypes.c_int32 * len(cpus))(*cpus), len(cpus))
        if not self.handle:
            raise ConfigError(f"cannot start {len(cpus)} threads", option="cpu_threads")

    def renew_threads(self, most: int | None = None) -> None:
        """Replace the threads by new ones, which have the priority of the calling thread.

        There are at most `most` from now on, by default as many as before. Their number changes no result.
        Raises RuntimeError if they cannot be started; the old ones stay.
        """
        num_threads = self.num_threads if most is None else max(1, min(most, len(self.cpus)))
        if not self._native.pool_renew_threads(self.handle, num_threads):
            raise RuntimeError(f"cannot start {num_threads} threads")
        self.num_threads = num_threads

    def close(self) -> None:
        """End the threads. The pool cannot be used afterwards."""
        handle, self.handle = self.handle, None
        if handle:
            self._native.pool_free(handle)


_pools: dict[int | None, ThreadPool] = {}


def get_thread_pool(threads: int | None) -> ThreadPool:
    """Return the process's pool of this many threads; None chooses the number for this machine."""
    if threads not in _pools:
        _pools[threads] = ThreadPool(chosen_cpus(threads))
    return _pools[threads]


def max_pool_threads() -> int:
    """Return how many threads the largest pool of get_thread_pool may have; 1 without one."""
    return max((len(pool.cpus) for pool in list(_pools.values())), default=1)


def renew_pool_threads(most: int | None = None) -> None:
    """Renew the threads of every pool of get_thread_pool; see ThreadPool.renew_threads."""
    for pool in list(_pools.values()):
        pool.renew_threads(most)


os.register_at_fork(after_in_child=_pools.clear)  # a fork has no threads: a model there starts its own
