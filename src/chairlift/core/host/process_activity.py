"""ActivityWatch, RunQueueDelay: what the kernel reports about a process that sends no message."""

from pathlib import Path

from chairlift.core.host.system_files import PROC, read_lines

_STATE_FIELD = 3  # the first field behind the command in /proc/PID/stat, by the numbers of proc(5)
_ACTIVITY_FIELDS = (10, 12, 14, 15, 42)
"""Minor and major page faults, user and system time, and the delay of block reads."""

NANOSECONDS = 1e-9


class ActivityWatch:
    """Whether a process runs, loads pages or reads files between two calls."""

    def __init__(self, pid: int, *, proc: Path = PROC) -> None:
        self._file = proc / str(pid) / "stat"
        self._counters: tuple[int, ...] = ()

    def was_active(self) -> bool:
        """Return whether a counter of the process has changed since the last call; False at the first one.

        A process without readable counters (no /proc, or it has ended) is never active.
        """
        before, self._counters = self._counters, self._read()
        return bool(before) and bool(self._counters) and before != self._counters

    def _read(self) -> tuple[int, ...]:
        text = " ".join(read_lines(self._file))
        fields = text.rpartition(")")[2].split()  # the command, in parentheses, may contain anything
        if len(fields) <= max(_ACTIVITY_FIELDS) - _STATE_FIELD:
            return ()
        return tuple(int(fields[number - _STATE_FIELD]) for number in _ACTIVITY_FIELDS)


class RunQueueDelay:
    """Counts for how long a process was kept from running by other programs.

    A step takes as long as its slowest thread, so between two calls the thread counts that waited longest.
    """

    def __init__(self, pid: int | str = "self", *, proc: Path = PROC) -> None:
        self._tasks = proc / str(pid) / "task"
        self._waited: dict[str, int] = {}
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds, since the first call, that a thread was ready to run and had no processor.

        0 where the kernel does not report it.
        """
        try:
            tasks = list(self._tasks.iterdir())
        except OSError:
            return self._seconds
        is_first, longest, waited = not self._waited, 0, {}
        for task in tasks:
            words = " ".join(read_lines(task / "schedstat")).split()  # run time, delay, number of slices
            if len(words) == 3:
                waited[task.name] = int(words[1])
                longest = max(longest, int(words[1]) - self._waited.get(task.name, 0))
        self._waited = waited
        if not is_first:
            self._seconds += longest * NANOSECONDS
        return self._seconds
