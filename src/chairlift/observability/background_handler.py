"""Background: a thread of its own writes what is logged, so that no full disk and no full pipe holds up who logs."""

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

MAX_LINES = 10_000
"""That wait to be written; what comes beyond is dropped and counted."""

CLOSE_SECONDS = 1.0


class Background(logging.Handler):
    """Stands before other handlers, and owns their thread.

    Attributes:
        handlers: who writes.
        dropped: lines that found no room and were not told of yet.
    """

    def __init__(self, handlers: Sequence[logging.Handler], max_lines: int = MAX_LINES) -> None:
        super().__init__(min(handler.level for handler in handlers))
        self.handlers = tuple(handlers)
        self.dropped = 0
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(max_lines)
        self._thread = threading.Thread(target=self._write, name="chairlift-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line; never waits."""
        record.msg, record.args = record.getMessage(), None  # what it is made of may change
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is there, unless that takes too long, and close the handlers. May be called more than once."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(CLOSE_SECONDS)
        if not self.is_stuck:
            for handler in self.handlers:
                with suppress(OSError):  # what a full disk has no room for
                    handler.close()
        super().close()

    @property
    def is_stuck(self) -> bool:
        """Whether something is still to be written; the locks of whoever writes it are held then."""
        return self._thread.is_alive()

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            if self.dropped:
                dropped, self.dropped = self.dropped, 0
                self._hand_out(_told(record, dropped))
            self._hand_out(record)

    def _hand_out(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


def _told(record: logging.LogRecord, dropped: int) -> logging.LogRecord:
    said = f"{dropped} lines were dropped: they could not be written in time"
    return logging.LogRecord(record.name, logging.WARNING, "", 0, said, None, None)
