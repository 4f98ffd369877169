"""ThreadPool: the native kernels' threads, pinned to processors.

    usable = processors of the affinity mask, one per physical core, at most as many as the cgroup quota allows

With more than two usable processors, the kernels leave one to the API process and the engine's Python code.
"""

import ctypes
import os
from functools import cache

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from chairlift.model.kernels.cpu.library import load


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


os.register_at_fork(after_in_child=get_thread_pool.cache_clear)  # a fork has no threads: a model there starts its own
