"""access_log.py: one line per request, which no client can split, with fields for programs."""

import logging

import pytest

from chairlift.web.access_log import MAX_PATH_CHARS, AccessRecord, log_access

RECORD = AccessRecord("req-1", "GET", "/livez", 200, 0.0125, "", "alice")


def test_a_line_says_what_was_asked_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chairlift.web.access_log"):
        log_access(RECORD, "/livez")
    [record] = caplog.records
    assert record.getMessage() == "GET /livez 200 12.5 ms"
    assert (record.request_id, record.status, record.tenant) == ("req-1", 200, "alice")  # type: ignore[attr-defined]


def test_of_a_long_path_only_the_beginning_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chairlift.web.access_log"):
        log_access(RECORD, "/" * 100_000)
    assert len(caplog.records[0].getMessage()) < MAX_PATH_CHARS + 50


def test_it_is_silent_by_default(caplog: pytest.LogCaptureFixture) -> None:
    log_access(RECORD, "/livez")
    assert caplog.records == []
