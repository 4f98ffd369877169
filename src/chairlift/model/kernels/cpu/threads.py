"""Which processors the kernels compute on, and the pool of threads that does.

    usable = those of the affinity mask, one of every physical core, at most as many as the cgroup's quota pays for

Where there are more than two of these, one is left to everybody else: the API process, and the engine's own Python.
"""

import ctypes
import math
from functools import cache
from pathlib import Path

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.library import load

ANYWHERE = -1

SHARED_WITH_OTHERS = 2
"""Up to so many processors the kernels take all."""


class ThreadPool:
    """Threads that stay on processors, and the caller's among them; several callers take turns.

    Attributes:
        cpus: where each member stays, or ANYWHERE.
        handle: for the library.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        """Start the threads. Raises ConfigError where they cannot be had."""
        self.cpus = cpus
        self._native = load()
        self.handle = self._native.pool_new((ctypes.c_int32 * len(cpus))(*cpus), len(cpus))
        if not self.handle:
            raise ConfigError(f"cannot start {len(cpus)} threads", option="cpu_threads")

    def close(self) -> None:
        """End the threads; nothing may be computed any more."""
        handle, self.handle = self.handle, None
        if handle:
            self._native.pool_free(handle)


@cache
def get_thread_pool(threads: int | None) -> ThreadPool:
    """Return this process's pool of so many members; None is what suits this machine."""
    return ThreadPool(chosen_cpus(threads))


def chosen_cpus(threads: int | None) -> tuple[int, ...]:
    """Return the processor of each member of a pool of so many. Raises ConfigError for fewer than one."""
    cores = usable_cores()
    if threads is None:
        threads = len(cores) if len(cores) <= SHARED_WITH_OTHERS else len(cores) - 1
    if threads < 1:
        raise ConfigError(f"cpu_threads must be at least 1, got {threads}", option="cpu_threads")
    if threads > len(cores):
        return (ANYWHERE,) * threads
    return cores[-threads:]  # the first one takes most of the system's interrupts


def usable_cores(*, sys_cpu: Path = Path("/sys/devices/system/cpu"), quota: float | None = None) -> tuple[int, ...]:
    """Return one processor of each physical core that this process may use, in order; `quota` limits their number."""
    cores: dict[str, int] = {}
    for cpu in sorted(usable_cpus()):
        try:
            siblings = (sys_cpu / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, cpu)
    quota = cpu_quota() if quota is None else quota
    most = len(cores) if quota is None else max(1, math.floor(quota))
    return tuple(cores.values())[:most]


def cpu_quota(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return how many processors' time the cgroups above this process allow; None for no limit."""
    found = []
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            below = Path(*parts[:depth])
            if controllers:
                folder = cgroup / controllers / below
                both = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
            else:
                both = [word for text in _lines(cgroup / below / "cpu.max") for word in text.split()]
            if len(both) == 2 and both[0].isdigit() and both[1].isdigit() and int(both[1]):
                found.append(int(both[0]) / int(both[1]))
    return min(found, default=None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
