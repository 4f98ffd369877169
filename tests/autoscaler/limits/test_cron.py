"""Cron expressions: fields, days, the last time before a moment, and changes of summer time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from chairlift.autoscaler.limits.cron import parse_cron
from chairlift.core.errors import ConfigError
from support_shares import for_each

BERLIN, ROME_UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")


def last(text: str, at: str, zone: ZoneInfo = ROME_UTC) -> str | None:
    """Return the last time of an expression, both times in UTC."""
    seconds = parse_cron(text).last_before(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp(), zone)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


@for_each(
    ("text", "at", "expected"),
    [
        ("* * * * *", "2026-03-04 05:06:59", "2026-03-04 05:06"),
        ("30 8 * * *", "2026-03-04 08:30", "2026-03-04 08:30"),
        ("30 8 * * *", "2026-03-04 08:29:59", "2026-03-03 08:30"),
        ("*/15 9-17 * * *", "2026-03-04 12:44", "2026-03-04 12:30"),
        ("*/15 9-17 * * *", "2026-03-04 08:59", "2026-03-03 17:45"),
        ("10-59/20 * * * *", "2026-03-04 12:55", "2026-03-04 12:50"),
        ("5/20 * * * *", "2026-03-04 12:55", "2026-03-04 12:45"),
        ("0 8 * * mon-fri", "2026-03-01 12:00", "2026-02-27 08:00"),  # a Sunday, back to Friday
        ("0 8 * * 7", "2026-03-04 12:00", "2026-03-01 08:00"),
        ("0 8 * * 0", "2026-03-04 12:00", "2026-03-01 08:00"),
        ("0 0 1 jan,JUL *", "2026-03-04 12:00", "2026-01-01 00:00"),
        ("0 0 29 2 *", "2027-03-01 00:00", "2024-02-29 00:00"),
        ("0 0 13 * fri", "2026-03-12 00:00", "2026-03-06 00:00"),  # either the 13th or a Friday
        ("0 0 13 * */7", "2026-03-12 00:00", "2025-07-13 00:00"),  # a star: both the 13th and a Sunday
        ("0 0 31 2 *", "2026-03-04 12:00", None),
    ],
)
def test_the_last_time_before_a_moment(text: str, at: str, expected: str | None) -> None:
    assert last(text, at) == expected


def test_times_are_local() -> None:
    assert last("0 8 * * *", "2026-01-15 12:00", BERLIN) == "2026-01-15 07:00"
    assert last("0 8 * * *", "2026-07-15 12:00", BERLIN) == "2026-07-15 06:00"
    assert last("0 0 * * *", "2026-01-14 23:30", BERLIN) == "2026-01-14 23:00"  # already the next day there
    assert last("30 23 * * *", "2026-01-14 22:00", ZoneInfo("Pacific/Kiritimati")) == "2026-01-14 09:30"


def test_a_time_that_summer_time_leaves_out_comes_with_the_change() -> None:
    # On 29 March 2026 in Berlin 02:00 is followed by 03:00, which is 01:00 UTC.
    assert last("30 2 * * *", "2026-03-29 00:59", BERLIN) == "2026-03-28 01:30"
    assert last("30 2 * * *", "2026-03-29 01:00", BERLIN) == "2026-03-29 01:00"
    # Samoa had no 30 December 2011: after the 29th came the 31st, at 10:00 UTC of the 30th.
    assert last("0 12 30 12 *", "2011-12-30 10:00", ZoneInfo("Pacific/Apia")) == "2011-12-30 10:00"
    assert last("0 4 * * *", "2026-03-29 02:00", BERLIN) == "2026-03-29 02:00"


def test_a_time_that_comes_twice_counts_the_first_time() -> None:
    # On 25 October 2026 in Berlin 03:00 is followed by 02:00; 02:30 is at 00:30 and at 01:30 UTC.
    assert last("30 2 * * *", "2026-10-25 00:30", BERLIN) == "2026-10-25 00:30"
    assert last("30 2 * * *", "2026-10-25 01:45", BERLIN) == "2026-10-25 00:30"
    assert last("0 4 * * *", "2026-10-25 03:00", BERLIN) == "2026-10-25 03:00"


@for_each(
    ("text", "part"),
    [
        ("* * * *", "4 fields"), ("60 * * * *", "between 0 and 59"), ("* 24 * * *", "between 0 and 23"),
        ("* * 0 * *", "between 1 and 31"), ("* * * 13 *", "between 1 and 12"), ("* * * * 8", "between 0 and 7"),
        ("5-1 * * * *", "empty"), ("*/0 * * * *", "between 1"), ("a * * * *", "'a' is no minute"),
        ("1,,2 * * * *", "'' is no minute"), ("-1 * * * *", "'' is no minute"), ("* mon * * *", "'mon' is no hour"),
        ("1-2-3 * * * *", "'2-3' is no minute"), ("² * * * *", "is no minute"), ("9999999999999 * * * *", "between"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused_with_its_part(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse_cron(text)
