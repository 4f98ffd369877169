"""process_facts: memory, threads and open files of one process, from /proc, with the limit of its open files."""

from pathlib import Path
from typing import Any

from chairlift.core.host.system_files import PROC, read_lines, read_sizes


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
