"""RecentLog: keeps the last log records in memory, as short texts."""

import logging
from collections import deque
from typing import Any

from chairlift.observability.url_check_and_redaction import without_user_info

MAX_RECORDS = 500
MAX_CHARS = 2000
"""Records that are kept, and characters of each message and of each traceback: a few megabytes at most."""


class RecentLog(logging.Handler):
    """The last records that the log's level lets pass. One costs its message, which the other handlers need, too."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        super().__init__()
        self._records: deque[tuple[float, str, str, str, str, str, str]] = deque(maxlen=max_records)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; never waits. The texts are cut here: a record itself would keep what its arguments name."""
        error = ""
        if record.exc_info and record.exc_info[0] is not None:
            error = logging.Formatter().formatException(record.exc_info)[-MAX_CHARS:]
        fields = vars(record)
        self._records.append((
            record.created, record.levelname, record.name, record.getMessage()[:MAX_CHARS],
            fields.get("request_id", ""), fields.get("trace_id", ""), error,
        ))  # fmt: skip

    def lines(self) -> list[dict[str, Any]]:
        """Return the records as JSON has them, the oldest first, without the passwords of URLs."""
        lines = []
        for created, level, logger, message, request_id, trace_id, error in list(self._records):
            more = {"request_id": str(request_id)[:MAX_CHARS], "trace_id": str(trace_id)[:MAX_CHARS]}
            more["error"] = without_user_info(error)
            line = {"time": round(created, 3), "level": level.lower(), "logger": logger}
            line["message"] = without_user_info(message)
            lines.append(line | {name: text for name, text in more.items() if text})
        return lines
