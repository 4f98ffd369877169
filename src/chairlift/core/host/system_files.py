"""read_lines, read_stat: read a file of /proc, /sys or a control group; one that is missing has no lines."""

from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file; empty if it is missing, or if its process has ended meanwhile."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_stat(folder: Path) -> list[str]:
    """Return the fields of the file stat of a process or thread, /proc/PID, from the third one (state) on.

    The first two are the id and the command, which may contain spaces and parentheses. Empty if the process has ended.
    """
    return " ".join(read_lines(folder / "stat")).rpartition(")")[2].split()


def read_number(file: Path) -> int | None:
    """Return the number of a file; None where the file is missing or contains "max"."""
    lines = read_lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def read_sizes(file: Path) -> dict[str, int]:
    """Return the sizes in bytes of a file with lines `MemTotal:  2048 kB`; a line without a unit is a plain number."""
    sizes = {}
    for line in read_lines(file):
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return sizes
