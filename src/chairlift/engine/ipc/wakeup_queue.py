"""Mailbox: things handed from any thread to one thread that sleeps in a poller."""

import contextlib
import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeupQueue(Generic[T]):
    """A line of things and a pipe that is readable while somebody should look at it.

    Any number of things costs one wake-up: only the first one after a take() writes to the pipe.
    """

    def __init__(self) -> None:
        self._things: deque[T] = deque()
        self._lock = threading.Lock()
        self._rung = self._closed = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._read_end

    @property
    def wakeup_fd(self) -> int:
        """The descriptor that wakes the reader when a byte is written to it; for signal.set_wakeup_fd."""
        return self._write_end

    def put(self, thing: T) -> None:
        """Hand a thing over and wake the reader; nothing is kept once the mailbox is closed."""
        with self._lock:
            if not self._closed:
                self._things.append(thing)
                self._notify()

    def wake(self) -> None:
        """Wake the reader without handing anything over."""
        with self._lock:
            if not self._closed:
                self._notify()

    def drain(self) -> list[T]:
        """Return everything that lies here, oldest first; never waits."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_end, 4096)
            self._rung = False
            things = list(self._things)
            self._things.clear()
        return things

    def close(self) -> None:
        """Close the pipe; may be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._read_end)
            os.close(self._write_end)

    def _notify(self) -> None:
        if not self._rung:
            self._rung = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_end, b"\0")
