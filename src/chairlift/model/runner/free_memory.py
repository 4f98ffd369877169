"""FreeMemory, free_memory, host_readings: how much memory a device or the host has free."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from chairlift.core.errors import ConfigError
from chairlift.core.host.memory_limits import cgroup_memory_limits
from chairlift.core.host.system_files import CGROUP, PROC, read_lines, read_sizes


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free bytes, the name of the limit that sets them, and the number of processes that share the memory equally.

    The bytes are those of one process.
    """

    num_bytes: int
    limit: str
    num_sharers: int = 1


def free_memory(device: torch.device, *, proc: Path = PROC, cgroup: Path = CGROUP) -> FreeMemory:
    """Return the free memory of the device, or of the host and every cgroup above this process (versions 1 and 2).

    Raises ConfigError where free memory cannot be measured.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The driver counts what torch's allocator holds as used, but new tensors get that first.
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return FreeMemory(free + reusable, f"free on {device}")
    readings = host_readings(proc, cgroup)
    if not readings:
        raise ConfigError("cannot measure free memory on this system; set num_blocks", option="num_blocks")
    tightest = min(readings, key=lambda one: one.num_bytes)
    mapped = mapped_weights(proc)
    if not mapped:
        return tightest
    limit = f"{tightest.limit} less {gibibytes(mapped)} of mapped weights"
    return FreeMemory(max(0, tightest.num_bytes - mapped), limit)


def host_readings(proc: Path = PROC, cgroup: Path = CGROUP) -> list[FreeMemory]:
    """Return the free memory of the host, and of every cgroup above this process that has a limit."""
    limits = cgroup_memory_limits(proc=proc, cgroup=cgroup)
    return [*_host_memory(proc), *(FreeMemory(max(0, each.num_bytes - each.used_bytes), each.name) for each in limits)]


def mapped_weights(proc: Path = PROC) -> int:
    """Return the bytes of safetensors files that this process has mapped."""
    total = 0
    for line in read_lines(proc / "self/maps"):
        if line.endswith(".safetensors"):
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


def gibibytes(num_bytes: int) -> str:
    """Format bytes in GiB, or in MiB below one GiB."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _host_memory(proc: Path) -> Iterator[FreeMemory]:
    if (available := read_sizes(proc / "meminfo").get("MemAvailable")) is not None:
        yield FreeMemory(available, "MemAvailable")
    elif proc == PROC and "SC_PHYS_PAGES" in os.sysconf_names:
        yield FreeMemory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, "half of the physical memory")
