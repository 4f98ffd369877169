"""Memory limits: the host's memory, and the memory limit of each cgroup above this process (versions 1 and 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.host.system_files import CGROUP, PROC, read_lines, read_number, read_sizes

CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Version of cgroups -> files of limit and use, and the entry of memory.stat with page cache that the kernel drops."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory that is limited, and what all its processes use.

    Attributes:
        num_bytes: the limit; a cgroup of version 1 without a limit has a huge one.
        used_bytes: used memory, without page cache that the kernel can drop at once.
        name: what sets the limit.
    """

    num_bytes: int
    used_bytes: int
    name: str


def memory_limits(*, proc: Path = PROC, cgroup: Path = CGROUP) -> list[MemoryLimit]:
    """Return the limits of the host and of every cgroup above this process; empty where none can be read."""
    sizes = read_sizes(proc / "meminfo")
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    host = [] if not total or available is None else [MemoryLimit(total, max(0, total - available), "MemTotal")]
    return [*host, *cgroup_memory_limits(proc=proc, cgroup=cgroup)]


def cgroup_memory_limits(*, proc: Path = PROC, cgroup: Path = CGROUP) -> Iterator[MemoryLimit]:
    """Yield the limit of every cgroup above this process that has one."""
    for line in read_lines(proc / "self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not path:
            continue
        if controllers == "":
            version, mounts = 2, [cgroup, cgroup / "unified"]
        elif "memory" in controllers.split(","):
            version, mounts = 1, [cgroup / "memory", cgroup / controllers]
        else:
            continue
        limit_file, usage_file, reclaimable = CGROUP_FILES[version]
        for folder in _upwards(mounts, path):
            limit, usage = read_number(folder / limit_file), read_number(folder / usage_file)
            if limit is None or usage is None:
                continue
            for entry in read_lines(folder / "memory.stat"):
                name, _, value = entry.partition(" ")
                if name == reclaimable:
                    usage -= int(value)
            yield MemoryLimit(limit, max(0, usage), f"cgroup {folder / limit_file}")


def _upwards(mounts: list[Path], path: str) -> Iterator[Path]:
    """Yield every folder from the process's own group up to the mount; in a container its own may be the mount."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])
