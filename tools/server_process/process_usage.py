"""ProcessTree: the CPU time and the memory that a process and its descendants use."""

import os
from pathlib import Path

PROC = Path("/proc")
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessTree:
    """A process and its descendants, found again at each reading."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        """Take the root's process id; `proc` is the folder of the process file system."""
        self._pid = pid
        self._proc = proc

    def cpu_seconds(self) -> float:
        """Return the CPU time that the living processes have used so far, in user mode and in the kernel."""
        return sum(_cpu_ticks(self._stat_fields(pid)) for pid in self.pids()) / CLOCK_TICKS_PER_SECOND

    def rss_bytes(self) -> int:
        """Return the resident memory of all processes; pages that they share count once for each."""
        return sum(int(fields[21]) * PAGE_BYTES for pid in self.pids() if (fields := self._stat_fields(pid)))

    def pids(self) -> list[int]:
        """Return the ids of the process and its descendants, parents first."""
        found = [self._pid]
        for pid in found:
            found += child_pids(pid, self._proc)
        return found

    def _stat_fields(self, pid: int) -> list[str]:
        """Return the fields of a process's stat file behind its name; empty when the process has ended."""
        try:
            text = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.rpartition(")")[2].split()


def child_pids(pid: int, proc: Path = PROC) -> list[int]:
    """Return the ids of a process's children, zombies included; none when the process has ended."""
    try:
        threads = [*(proc / str(pid) / "task").iterdir()]
        lists = [(thread / "children").read_text(encoding="utf-8").split() for thread in threads]
    except OSError:  # the process, or the thread, has ended
        return []
    return [int(child) for each in lists for child in each]


def _cpu_ticks(fields: list[str]) -> int:
    return int(fields[11]) + int(fields[12]) if fields else 0
