"""Memory: what a large request left free in this process is used again, and goes back to the system.

A text of a megabyte takes some hundred megabytes while it becomes tokens. The C library keeps such memory for the
thread that it came from, and so a server would stay as large as its largest requests together: `share_arenas`. And it
gives large parts of it back only when it is told to: `Thrift`.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

M_ARENA_MAX = -8
"""Of mallopt(3), in glibc."""

ARENAS = 2
"""With one, threads that make tokens of long texts wait for each other; with one each, what is free in them adds up."""

SLACK_BYTES = 32 * 2**20
"""By so much a process may be larger than it was at its smallest."""

LOOKS = 10
"""From one time of giving back to the next: what was in use then may be free now."""

MOST_LOOKS = 640
"""The same where there was little to give: the pause doubles, since giving back holds up who wants memory."""


class Thrift:
    """Gives free memory back while the process is large. Not for several threads at once."""

    def __init__(self, resident: Callable[[], int | None], trim: Callable[[], None], slack: int = SLACK_BYTES) -> None:
        """Look with `resident` (bytes, None where the system does not tell), give back with `trim`."""
        self._resident = resident
        self._trim = trim
        self._slack = slack
        self._smallest = resident()
        self._pause, self._next_pause = 0, LOOKS

    def look(self) -> bool:
        """Give back what is free where the process is large; returns whether it did."""
        now = self._resident()
        if now is None or self._smallest is None:
            return False
        self._smallest = min(self._smallest, now)
        self._pause = max(0, self._pause - 1)
        if self._pause or now <= self._smallest + self._slack:
            return False
        self._trim()
        after = self._resident()
        gave = 0 if after is None else now - after
        self._next_pause = LOOKS if gave >= self._slack // 4 else min(2 * self._next_pause, MOST_LOOKS)
        self._pause = self._next_pause
        return True


def share_arenas() -> bool:
    """Have threads share few arenas of the C library instead of one each; returns whether it knows how (ADR 0018)."""
    option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return option is not None and bool(option(M_ARENA_MAX, ARENAS))


def thrift() -> Thrift:
    """Return that of this process; where the C library cannot give memory back, it does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return Thrift(lambda: None, lambda: None)
    return Thrift(resident_bytes, lambda: trim(0))


def resident_bytes() -> int | None:
    """Return this process's resident memory; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
