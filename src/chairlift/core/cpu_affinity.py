"""Processors: which of them a process may use, which of its threads keep off some, and which give way.

All of it is a wish: where the system has no such thing, or does not allow it, nothing happens.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

TASKS = Path("/proc/self/task")


def usable_cpus() -> frozenset[int]:
    """Return the numbers of the processors on which the calling thread may run."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def thread_ids() -> frozenset[int]:
    """Return the system's numbers of this process's threads; none where it does not tell."""
    try:
        return frozenset(int(each.name) for each in TASKS.iterdir())
    except (OSError, ValueError):
        return frozenset()


def pin_process(cpus: Iterable[int]) -> bool:
    """Have every thread of this process, and what they start later, run on these; returns whether it does."""
    wanted = frozenset(cpus)
    if not wanted or not hasattr(os, "sched_setaffinity"):
        return False
    for thread in thread_ids() or {0}:
        with contextlib.suppress(OSError):  # it has ended, or may not run on any of them
            os.sched_setaffinity(thread, wanted)
    return usable_cpus() <= wanted


def cpus_apart_from(busy: Sequence[int]) -> frozenset[int]:
    """Return where a thread should run that works while others keep some processors busy.

    On those that are left; where none is, on all but the first: its thread hands the work out.
    """
    usable = usable_cpus()
    return usable - frozenset(busy) or usable - frozenset(busy[:1]) or usable


def pin_thread(cpus: Iterable[int]) -> None:
    """Have the calling thread, and those that it starts, run on these."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # none of them is there
            os.sched_setaffinity(0, cpus)


def lower_priority(of: Iterable[int], niceness: int) -> None:
    """Have some threads be nicer by so much than the calling one; one that is as nice already stays so."""
    if not TASKS.exists():  # elsewhere a thread's number would be taken for a process's
        return
    niceness += os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    for thread in of:
        with contextlib.suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
