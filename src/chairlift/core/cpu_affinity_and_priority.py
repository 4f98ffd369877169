"""CPU affinity and priority: pins processes and threads to processors and lowers their priority.

Every function is best effort: where the system lacks the call, or does not allow it, nothing happens.
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
    """Return the system's ids of this process's threads; empty if the system does not list them."""
    try:
        return frozenset(int(each.name) for each in TASKS.iterdir())
    except (OSError, ValueError):
        return frozenset()


def pin_process(cpus: Iterable[int]) -> bool:
    """Pin all threads of this process, also later ones, to `cpus`; return whether it worked."""
    allowed = frozenset(cpus)
    if not allowed or not hasattr(os, "sched_setaffinity"):
        return False
    for thread in thread_ids() or {0}:
        with contextlib.suppress(OSError):  # the thread has ended, or may not run on any of these
            os.sched_setaffinity(thread, allowed)
    return usable_cpus() <= allowed


def cpus_apart_from(busy: Sequence[int]) -> frozenset[int]:
    """Return the CPUs for a thread that works while other threads keep `busy` CPUs occupied.

    Returns the remaining ones; if none remain, all but the first, whose thread distributes the work.
    """
    usable = usable_cpus()
    return usable - frozenset(busy) or usable - frozenset(busy[:1]) or usable


def pin_thread(cpus: Iterable[int]) -> None:
    """Pin the calling thread, and threads that it starts, to `cpus`."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # none of these processors exists
            os.sched_setaffinity(0, cpus)


def lower_priority(niceness: int) -> None:
    """Make the calling thread, and those that it starts from now on, `niceness` levels nicer."""
    if not TASKS.exists():  # on other systems a thread id would be read as a process id
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
