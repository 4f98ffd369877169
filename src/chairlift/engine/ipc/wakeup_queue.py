"""WakeupQueue: passes items from any thread to one thread that sleeps in a poller."""

import contextlib
import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeupQueue(Generic[T]):
    """A queue of items and a pipe that is readable while the queue needs a drain().

    Any number of items costs one wake-up: only the first one after a drain() writes to the pipe.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._is_notified = self._is_closed = False
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

    def put(self, item: T) -> None:
        """Add an item and wake the reader; after close() the item is dropped."""
        with self._lock:
            if not self._is_closed:
                self._items.append(item)
                self._notify()

    def wake(self) -> None:
        """Wake the reader without adding an item."""
        with self._lock:
            if not self._is_closed:
                self._notify()

    def drain(self) -> list[T]:
        """Remove and return all queued items, oldest first; never waits."""
        with self._lock:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_end, 4096)
            self._is_notified = False
            items = list(self._items)
            self._items.clear()
        return items

    def close(self) -> None:
        """Close the pipe; may be called more than once."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._read_end)
            os.close(self._write_end)

    def _notify(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_end, b"\0")
