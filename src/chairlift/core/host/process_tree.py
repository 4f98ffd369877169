"""ProcessTree: CPU time, memory and CPUs of a process and all its descendants, from /proc.

    memory = private memory of all + the most file-backed memory of one + the most shared memory of one

Processes of one replica map the same libraries and share the same memory, so that adding them up would count those
pages twice. The kernel's own number without that error (PSS) costs a walk over all pages, which stops a process that
has gigabytes of them.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.host.system_files import PROC, read_sizes, read_stat

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second of the CPU times in /proc."""


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What a process and its descendants use.

    Attributes:
        cpu_seconds: CPU time of the processes, and of those of their children that have ended.
        memory_bytes: resident memory; shared pages count once.
        cpus: processors on which any of their threads may run.
    """

    cpu_seconds: float
    memory_bytes: int
    cpus: frozenset[int]


class ProcessTree:
    """Reads one process and its descendants."""

    def __init__(self, pid: int, *, proc: Path = PROC, affinity: Callable[[int], Iterable[int]] | None = None) -> None:
        """`affinity` returns the processors of a thread, by default the system's answer."""
        self._pid, self._proc = pid, proc
        self._affinity = affinity or getattr(os, "sched_getaffinity", None)

    def read(self) -> TreeUsage | None:
        """Return what the processes use now; None if the system does not report it."""
        cpu_ticks, cpus, memory = 0, set[int](), list[dict[str, int]]()
        for pid in self._pids():
            if (fields := self._stat(pid)) is None:  # it has ended
                continue
            cpu_ticks += sum(map(int, fields[11:15]))  # utime, stime, and both of children that were waited for
            sizes = read_sizes(self._proc / str(pid) / "status")
            if "RssAnon" in sizes:  # else its parent has not waited for it, and its memory is free
                memory.append(sizes)
            for thread in self._threads(pid):
                with suppress(OSError):  # the thread has ended
                    cpus.update(self._affinity(thread) if self._affinity is not None else ())
        if not memory:
            return None
        private = sum(sizes["RssAnon"] for sizes in memory)
        files, shared = (max(sizes.get(name, 0) for sizes in memory) for name in ("RssFile", "RssShmem"))
        return TreeUsage(cpu_ticks / TICKS_PER_SECOND, private + files + shared, frozenset(cpus))

    def _pids(self) -> list[int]:
        """Return the process and its descendants."""
        children = self._children if self._lists_children() else self._parents_table().get
        found, next_pids = list[int](), [self._pid]
        while next_pids:
            found.append(pid := next_pids.pop())
            next_pids += [child for child in children(pid) or () if child not in found]
        return found

    def _lists_children(self) -> bool:
        """Return whether the kernel lists the children of a thread."""
        return (self._proc / f"{self._pid}/task/{self._pid}/children").exists()

    def _children(self, pid: int) -> list[int]:
        found = list[int]()
        for thread in self._threads(pid):
            with suppress(OSError), open(f"{self._proc}/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())  # a read of Path's takes three times as long
        return found

    def _parents_table(self) -> dict[int, list[int]]:
        """Return the children of every process of the machine; slower, for kernels that do not list them."""
        table: dict[int, list[int]] = {}
        for pid in _numbers(self._proc):
            if (fields := self._stat(pid)) is not None:
                table.setdefault(int(fields[1]), []).append(pid)
        return table

    def _threads(self, pid: int) -> list[int]:
        return _numbers(self._proc / str(pid) / "task")

    def _stat(self, pid: int) -> list[str] | None:
        """Return the fields of /proc/PID/stat from the third one (state) on; None if the process has ended."""
        fields = read_stat(self._proc / str(pid))
        return fields if len(fields) > 14 else None


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
