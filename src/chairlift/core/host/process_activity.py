"""ActivityWatch, RunQueueDelay, UndelayedTimer, cpu_seconds: what the kernel reports about processes and threads."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.host.system_files import PROC, read_lines, read_stat

_STATE_FIELD = 3  # the first field of read_stat, by the numbers of proc(5)
_ACTIVITY_FIELDS = (10, 12, 14, 15, 42)
"""Minor and major page faults, user and system time, and the delay of block reads."""

NANOSECONDS = 1e-9

BUSY_SHARE = 0.25
"""Share of the busiest thread's time, running or ready to run, from which a thread counts as busy."""

LEAST_SHARE = 0.1
"""Least share of its time that counts for an operation, however long other programs delayed it."""


class ActivityWatch:
    """Whether a process runs, loads pages or reads files between two calls."""

    def __init__(self, pid: int, *, proc: Path = PROC) -> None:
        self._folder = proc / str(pid)
        self._counters: tuple[int, ...] = ()

    def was_active(self) -> bool:
        """Return whether a counter of the process has changed since the last call; False at the first one.

        A process without readable counters (no /proc, or it has ended) is never active.
        """
        before, self._counters = self._counters, self._read()
        return bool(before) and bool(self._counters) and before != self._counters

    def _read(self) -> tuple[int, ...]:
        fields = read_stat(self._folder)
        if len(fields) <= max(_ACTIVITY_FIELDS) - _STATE_FIELD:
            return ()
        return tuple(int(fields[number - _STATE_FIELD]) for number in _ACTIVITY_FIELDS)


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process with its threads; None where the kernel does not report it."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # the clock of a process, as clock_getcpuclockid(3) has it
    return None


def parent_cpu_seconds() -> float:
    """Return the processor time of the process that started this one; 0.0 where the kernel does not report it."""
    return cpu_seconds(os.getppid()) or 0.0


def without_delay(seconds: float, delay_seconds: float) -> float:
    """Return the seconds of an operation without its delay by other programs, but at least LEAST_SHARE of them.

    So an operation that computes for ever exceeds its limit on a busy machine, too.
    """
    return max(seconds - delay_seconds, LEAST_SHARE * seconds)


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """What a thread did between two readings, in seconds: it ran, and it was ready to run and had no processor."""

    run_seconds: float
    delay_seconds: float


class RunQueueDelay:
    """Reads for how long other programs kept a process's threads from running."""

    def __init__(self, pid: int | str = "self", *, proc: Path = PROC) -> None:
        self._tasks = proc / str(pid) / "task"
        self._before: dict[str, tuple[int, int]] = {}
        self._seconds = 0.0

    def read(self) -> list[ThreadTimes]:
        """Return the times of the busy threads since the last call: those that ran, or were ready to, for long.

        Empty at the first call, and where the kernel does not report them.
        """
        before, self._before = self._before, self._read()
        if not before:
            return []
        times = []
        for name, (run, delay) in self._before.items():
            run_before, delay_before = before.get(name, (0, 0))
            times.append(ThreadTimes((run - run_before) * NANOSECONDS, (delay - delay_before) * NANOSECONDS))
        least = BUSY_SHARE * max((each.run_seconds + each.delay_seconds for each in times), default=0.0)
        return [each for each in times if each.run_seconds + each.delay_seconds >= least]

    def seconds(self) -> float:
        """Return the seconds since the first call in which a busy thread was ready to run and had no processor.

        Of several threads the one that waited longest counts, between two calls: a step takes as long as its slowest.
        """
        self._seconds += max((each.delay_seconds for each in self.read()), default=0.0)
        return self._seconds

    def _read(self) -> dict[str, tuple[int, int]]:
        times = {}
        try:
            tasks = list(self._tasks.iterdir())
        except OSError:
            return {}
        for task in tasks:
            words = " ".join(read_lines(task / "schedstat")).split()  # time, delay and number of runs
            if len(words) == 3:
                times[task.name] = (int(words[0]), int(words[1]))
        return times


class UndelayedTimer:
    """Measures how long other processes take for something, without the delay of the slowest one by other programs."""

    def __init__(
        self, pids: Iterable[int | str], *, now: Callable[[], float] = time.monotonic, proc: Path = PROC
    ) -> None:
        """Begin. Without processes, and where the kernel reports no delays, it measures the time."""
        self._now, self._started_at = now, now()
        self._delays = [RunQueueDelay(pid, proc=proc) for pid in pids]
        self.elapsed()

    def elapsed(self) -> float:
        """Return the seconds since the beginning: without_delay."""
        delay = max([each.seconds() for each in self._delays], default=0.0)
        return without_delay(self._now() - self._started_at, delay)
