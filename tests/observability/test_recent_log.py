"""RecentLog: only the last records are kept, with texts of a bounded length."""

import logging

from chairlift.observability.recent_log import MAX_CHARS, RecentLog


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("chairlift.x", logging.INFO, "", 0, message, None, None)


def test_only_the_last_records_are_kept_and_their_texts_are_cut() -> None:
    log = RecentLog(max_records=2)
    for text in ("first", "second", "x" * (MAX_CHARS + 1)):
        log.handle(record(text))
    assert [line["message"] for line in log.lines()] == ["second", "x" * MAX_CHARS]
