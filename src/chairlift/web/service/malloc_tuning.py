"""MallocTrimmer: returns memory that a large request left free in this process to the operating system.

A text of a megabyte takes some hundred megabytes while it is tokenized. The C library keeps such memory for the
thread that allocated it, so a server would stay as large as its largest requests together: `limit_malloc_arenas`.
And it returns large parts of it only on demand: `MallocTrimmer`.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

M_ARENA_MAX = -8
"""Parameter of mallopt(3) in glibc: the largest number of arenas."""

ARENAS = 2
"""Malloc arenas of the process. With one, tokenizing threads wait for each other; with many, free memory adds up."""

SLACK_BYTES = 32 * 2**20
"""Bytes by which the process may exceed its smallest resident size before it trims."""

MIN_PAUSE_CHECKS = 10
"""Checks from one trim to the next: memory that was in use may be free by then."""

MAX_PAUSE_CHECKS = 640
"""Largest pause between trims: it doubles where a trim freed little, since trimming blocks threads that allocate."""


class MallocTrimmer:
    """Returns free memory to the system while the process is large. Not thread-safe."""

    def __init__(self, resident: Callable[[], int | None], trim: Callable[[], None], slack: int = SLACK_BYTES) -> None:
        """Measure with `resident` (bytes; None if unknown) and return memory with `trim`."""
        self._resident = resident
        self._trim = trim
        self._slack = slack
        self._smallest = resident()
        self._pause, self._next_pause = 0, MIN_PAUSE_CHECKS

    def trim_if_large(self) -> bool:
        """Trim if the process is large; return whether it did."""
        resident_now = self._resident()
        if resident_now is None or self._smallest is None:
            return False
        self._smallest = min(self._smallest, resident_now)
        self._pause = max(0, self._pause - 1)
        if self._pause or resident_now <= self._smallest + self._slack:
            return False
        self._trim()
        after = self._resident()
        freed = 0 if after is None else resident_now - after
        self._next_pause = (
            MIN_PAUSE_CHECKS if freed >= self._slack // 4 else min(2 * self._next_pause, MAX_PAUSE_CHECKS)
        )
        self._pause = self._next_pause
        return True


def limit_malloc_arenas() -> bool:
    """Limit malloc to a few arenas, which threads share; return whether that worked (ADR 0018)."""
    option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return option is not None and bool(option(M_ARENA_MAX, ARENAS))


def malloc_trimmer() -> MallocTrimmer:
    """Return the trimmer of this process; it does nothing if the C library cannot trim."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return MallocTrimmer(lambda: None, lambda: None)
    return MallocTrimmer(resident_bytes, lambda: trim(0))


def resident_bytes() -> int | None:
    """Return this process's resident memory in bytes; None if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
