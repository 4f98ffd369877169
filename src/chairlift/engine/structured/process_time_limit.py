"""ProcessTimeLimit: whether another process has computed for too long, or done nothing for too long."""

import time
from collections.abc import Callable

from chairlift.core.host import process_activity


class ProcessTimeLimit:
    """The limits of one operation in another process, from its beginning on.

    A process that other programs keep from running computes slowly, but it computes, so it exceeds neither limit.
    """

    def __init__(
        self,
        pid: int,
        *,
        cpu_seconds: float,
        idle_seconds: float,
        read: Callable[[int], float | None] = process_activity.cpu_seconds,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin. `cpu_seconds` is the longest processor time, `idle_seconds` the longest time without any.

        Where the kernel does not report processor time, `cpu_seconds` is the longest time of the operation.
        """
        self._pid, self._idle_seconds, self._read, self._now = pid, idle_seconds, read, now
        used = read(pid)
        self._has_accounts = used is not None
        self._used = now() if used is None else used
        self._cpu_limit = self._used + cpu_seconds
        self._active_at = now()

    def is_exceeded(self) -> bool:
        """Return whether the operation has exceeded a limit. Call it often: an idle time ends when a call sees it."""
        now = self._now()
        used = self._read(self._pid) if self._has_accounts else now
        if used is not None and used > self._used:  # None: the process has ended
            self._used, self._active_at = used, now
        return self._used >= self._cpu_limit or now - self._active_at >= self._idle_seconds
