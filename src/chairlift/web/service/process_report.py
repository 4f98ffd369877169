"""process_report: what /admin/debug says about any service's process: version, resources, libraries and log."""

import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from chairlift.core.host.memory_limits import memory_limits
from chairlift.core.host.system_files import PROC, read_lines, read_sizes
from chairlift.core.version import __version__
from chairlift.observability.logging import recent_lines

_REQUIREMENT = re.compile(r"[A-Za-z0-9_.-]+")


def process_report(
    service: str, uptime_seconds: float, settings: Mapping[str, Any], more_pids: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the part of a debug report that every service has. Reads files: call it in a thread.

    `settings` has no secrets; `more_pids` are the service's other processes by name.
    """
    pids = {"api": os.getpid(), **(more_pids or {})}
    return {
        "service": service,
        "version": __version__,
        "time": round(time.time(), 3),
        "uptime_seconds": round(uptime_seconds, 3),
        "settings": dict(settings),
        "processes": {name: process_facts(pid) for name, pid in pids.items()},
        "host": _host(),
        "libraries": _library_versions(),
        "log": recent_lines(),
    }


def _host() -> dict[str, Any]:
    sizes = read_sizes(PROC / "meminfo")
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "memory_total_bytes": sizes.get("MemTotal"),
        "memory_available_bytes": sizes.get("MemAvailable"),
        "memory_limits": [asdict(each) for each in memory_limits()],
    }


@cache
def _library_versions() -> dict[str, str]:
    """Return the versions of those libraries of Chairlift's requirements that are installed."""
    try:
        lines = metadata.requires("chairlift") or []
    except metadata.PackageNotFoundError:
        lines = []
    names = sorted({match[0].lower() for line in lines if (match := _REQUIREMENT.match(line))})
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def process_facts(pid: int, proc: Path = PROC) -> dict[str, Any]:
    """Return the facts of a process as JSON has them; None is a value that the system does not report."""
    folder = proc / str(pid)
    sizes = read_sizes(folder / "status")
    try:
        open_files = len(list((folder / "fd").iterdir()))
    except OSError:
        open_files = None
    limits = [line.split() for line in read_lines(folder / "limits") if line.startswith("Max open files")]
    soft = limits[0][3] if limits and len(limits[0]) > 3 else ""
    return {
        "pid": pid,
        "memory_bytes": sizes.get("VmRSS"),
        "threads": sizes.get("Threads"),
        "open_files": open_files,
        "max_open_files": int(soft) if soft.isdigit() else None,
    }
