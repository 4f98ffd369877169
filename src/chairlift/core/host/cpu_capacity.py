"""CPU capacity: how many processors a process can keep busy.

capacity = physical cores among the processors of the affinity mask, at most as many as the cgroup quota allows
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from chairlift.core.host.system_files import CGROUP, PROC, read_lines

SYS_CPU = Path("/sys/devices/system/cpu")


def one_cpu_per_core(cpus: Iterable[int], sys_cpu: Path = SYS_CPU) -> tuple[int, ...]:
    """Return the first of `cpus` of each physical core, ascending; without topology each processor is a core."""
    cores: dict[str, int] = {}
    for cpu in sorted(cpus):
        siblings = " ".join(read_lines(sys_cpu / f"cpu{cpu}/topology/thread_siblings_list")).strip()
        cores.setdefault(siblings or f"cpu{cpu}", cpu)
    return tuple(cores.values())


def cpu_quota(*, proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """Return the number of processors that the process's cgroups allow, as a fraction; None without a limit."""
    quotas = []
    for line in read_lines(proc / "self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            group = Path(*parts[:depth])
            if controllers:
                folder = cgroup / controllers / group
                words = [*read_lines(folder / "cpu.cfs_quota_us"), *read_lines(folder / "cpu.cfs_period_us")]
            else:
                words = [word for text in read_lines(cgroup / group / "cpu.max") for word in text.split()]
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cpu_capacity(cpus: frozenset[int], *, proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """Return the number of processors that `cpus` and the quota allow, as a fraction; None without any."""
    num_cores, quota = float(_num_cores(cpus)), cpu_quota(proc=proc, cgroup=cgroup)
    return (num_cores if quota is None else min(num_cores, quota)) or None


@lru_cache(maxsize=8)
def _num_cores(cpus: frozenset[int]) -> int:
    """Return the number of physical cores; it takes a file for each processor, and does not change."""
    return len(one_cpu_per_core(cpus))
