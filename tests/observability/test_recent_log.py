"""RecentLog keeps the last records, short and in order, whatever the other handlers do."""

import io
import logging

from chairlift.observability.logging import (
    LogConfig,
    configure,
    current_id,
    recent_lines,
    set_levels,
    use_background_writer,
)
from chairlift.observability.recent_log import MAX_CHARS, RecentLog


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("chairlift.x", logging.INFO, "", 0, message, None, None)


def test_only_the_last_records_are_kept_and_their_texts_are_cut() -> None:
    log = RecentLog(max_records=2)
    for text in ("first", "second", "x" * (MAX_CHARS + 1)):
        log.handle(record(text))
    assert [line["message"] for line in log.lines()] == ["second", "x" * MAX_CHARS]


def test_a_record_has_its_level_its_logger_its_request_and_its_traceback() -> None:
    configure(LogConfig(level=logging.INFO), io.StringIO())
    token = current_id.set("req-1")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("chairlift.x").exception("it failed with %d", 7)
    finally:
        current_id.reset(token)
    (line,) = recent_lines()
    assert (line["level"], line["logger"], line["message"], line["request_id"]) == (
        "error", "chairlift.x", "it failed with 7", "req-1",
    )  # fmt: skip
    assert line["error"].endswith("ValueError: broken") and line["time"] > 0


def test_records_are_kept_behind_the_background_writer_and_after_a_change_of_levels() -> None:
    configure(LogConfig(level=logging.WARNING), io.StringIO())
    background = use_background_writer()
    set_levels(LogConfig(level=logging.INFO, stream_level=logging.INFO))
    logging.getLogger("chairlift.x").info("one")
    set_levels(LogConfig(level=logging.ERROR, stream_level=logging.ERROR))
    logging.getLogger("chairlift.x").warning("below the level")
    background.close()
    assert [line["message"] for line in recent_lines()] == ["one"]


def test_a_log_that_is_not_configured_has_no_lines() -> None:
    logging.getLogger("chairlift").handlers[:] = []
    assert recent_lines() == []


def test_no_line_has_the_password_of_a_url() -> None:
    configure(LogConfig(level=logging.INFO), io.StringIO())
    try:
        raise ValueError("http://u:secret@h")
    except ValueError:
        logging.getLogger("chairlift.x").exception("no answer from %s", "http://u:secret@h/a")
    (line,) = recent_lines()
    assert line["message"] == "no answer from http://***@h/a" and "secret" not in line["error"]
