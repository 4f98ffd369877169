"""TraceFile: writes trace events as a growing JSON array that is readable even when the process is killed.

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
"""Events that may wait for the disk; further ones are dropped and counted."""


class TraceFile:
    """Accepts events from any thread without blocking; its own thread writes them."""

    def __init__(self, path: "str | PathLike[str]") -> None:
        """Create or truncate the file. Raises OSError."""
        self._file = open(path, "wb")  # noqa: SIM115  # closed by close()
        self._waiting: deque[Event] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self.dropped = 0
        self.error: OSError | None = None
        self._write_guarded(b"[\n")  # now: what a fork inherits unwritten, it writes again at its end
        self._thread = threading.Thread(target=self._work, name="chairlift-trace", daemon=True)
        self._thread.start()

    def add(self, events: Iterable[Event]) -> None:
        """Queue events for writing; ignores them after close()."""
        if self._closed:
            return
        for event in events:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(event)
            else:
                self.dropped += 1

    def close(self, last: Event) -> None:
        """Write the waiting events and `last`, and close the array; may be called more than once.

        A closed array is plain JSON.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        self._thread.join()
        self._write_guarded(msgspec.json.encode(last) + b"\n]\n")
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error

    def _work(self) -> None:
        while not self._wake.wait(FLUSH_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        count = len(self._waiting)
        if count:
            self._write_guarded(b"".join([self._encoded(self._waiting.popleft()) for _ in range(count)]))

    def _encoded(self, event: Event) -> bytes:
        """Return the event as a line; count it as dropped and return b"" when JSON cannot represent it."""
        try:
            return msgspec.json.encode(event) + b",\n"
        except (UnicodeEncodeError, TypeError, ValueError):
            self.dropped += 1
            return b""

    def _write_guarded(self, text: bytes) -> None:
        """Write to the file; the first OSError ends the trace and nothing else."""
        if self.error is None:
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:
                self.error = error
