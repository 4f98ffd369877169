"""BackgroundHandler: writes log records in its own thread, so that a full disk or pipe never blocks the caller."""

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

MAX_LINES = 10_000
"""Log lines that may wait to be written; further ones are dropped and counted."""

CLOSE_SECONDS = 1.0  # that close() waits for the writing thread


class BackgroundHandler(logging.Handler):
    """Queues records for other handlers and owns the thread that writes them.

    Attributes:
        handlers: the handlers that write.
        dropped: lines dropped since the last report of dropped lines.
    """

    def __init__(self, handlers: Sequence[logging.Handler], max_lines: int = MAX_LINES) -> None:
        super().__init__(min(handler.level for handler in handlers))
        self.handlers = tuple(handlers)
        self.dropped = 0
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(max_lines)
        self._thread = threading.Thread(target=self._write, name="chairlift-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; never waits."""
        record.msg, record.args = record.getMessage(), None  # the arguments may change later
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write the queued lines for CLOSE_SECONDS at most, then close the handlers. Idempotent."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(CLOSE_SECONDS)
        if not self.is_stuck:
            for handler in self.handlers:
                with suppress(OSError):  # a full disk
                    handler.close()
        super().close()

    @property
    def is_stuck(self) -> bool:
        """Whether the thread is still writing; it holds the locks of the handlers then."""
        return self._thread.is_alive()

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            if self.dropped:
                dropped, self.dropped = self.dropped, 0
                self._dispatch(_dropped_lines_record(record, dropped))
            self._dispatch(record)

    def _dispatch(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


def _dropped_lines_record(record: logging.LogRecord, dropped: int) -> logging.LogRecord:
    message = f"{dropped} lines were dropped: they could not be written in time"
    return logging.LogRecord(record.name, logging.WARNING, "", 0, message, None, None)
