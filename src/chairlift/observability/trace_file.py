"""TraceFile: a JSON array of trace events that grows while it is written, and is readable whenever that ends.

The format is Chrome's "trace event format" (JSON array form), which Perfetto and chrome://tracing open. A reader must
accept an array without its end, so a process that was killed leaves a trace of all but its last moments.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import msgspec

Event = Mapping[str, Any]

FLUSH_SECONDS = 0.25
MAX_WAITING = 200_000
"""So many events may wait for the disk; those that come then are dropped and counted."""


class TraceFile:
    """Takes events from any thread without keeping it waiting: a thread of its own writes them."""

    def __init__(self, path: "str | PathLike[str]") -> None:
        """Create the file, or empty it. Raises OSError."""
        self._file = open(path, "wb")  # noqa: SIM115  # closed by close()
        self._file.write(b"[\n")
        self._waiting: deque[Event] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self.dropped = 0
        self.fault: OSError | None = None
        self._thread = threading.Thread(target=self._work, name="chairlift-trace", daemon=True)
        self._thread.start()

    def add(self, events: Iterable[Event]) -> None:
        """Have events written soon; after close() they are forgotten."""
        if self._closed:
            return
        for event in events:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(event)
            else:
                self.dropped += 1

    def close(self, last: Event) -> None:
        """Write what waits, and `last`, which has no comma behind it; may be called more than once.

        An array that is closed is plain JSON.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        self._thread.join()
        self._guarded(msgspec.json.encode(last) + b"\n]\n")
        try:
            self._file.close()
        except OSError as error:
            self.fault = self.fault or error

    def _work(self) -> None:
        while not self._wake.wait(FLUSH_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        count = len(self._waiting)
        if count:
            self._guarded(b"".join([self._encoded(self._waiting.popleft()) for _ in range(count)]))

    def _encoded(self, event: Event) -> bytes:
        """Return its line; nothing, and one more dropped, where it holds what JSON cannot."""
        try:
            return msgspec.json.encode(event) + b",\n"
        except (UnicodeEncodeError, TypeError, ValueError):
            self.dropped += 1
            return b""

    def _guarded(self, text: bytes) -> None:
        """A disk that is full ends the trace and nothing else."""
        if self.fault is None:
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:
                self.fault = error
