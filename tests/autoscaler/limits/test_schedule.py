"""Schedules: floors between a start and an end, in their time zone."""

from datetime import UTC, datetime

import pytest

from chairlift.autoscaler.limits.schedule import Schedule, scheduled_floor
from chairlift.core.errors import ConfigError
from support_shares import for_each

OFFICE = Schedule(start="0 8 * * mon-fri", end="0 18 * * mon-fri", replicas=5, time_zone="Europe/Berlin")
LUNCH = Schedule(start="0 11 * * *", end="0 12 * * *", replicas=8)
NEVER = Schedule(start="0 0 31 2 *", end="0 12 * * *", replicas=50)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@for_each(
    ("text", "floor"),
    [
        ("2026-03-04 06:59", 0), ("2026-03-04 07:00", 5), ("2026-03-04 11:30", 8), ("2026-03-04 16:59", 5),
        ("2026-03-04 17:00", 0), ("2026-03-07 10:00", 0),  # a Saturday: ended on Friday
        ("2026-07-01 06:00", 5), ("2026-07-01 16:00", 0),  # summer time
    ],
)  # fmt: skip
def test_the_highest_active_floor_counts(text: str, floor: int) -> None:
    assert scheduled_floor((OFFICE, LUNCH, NEVER), at(text)) == floor


def test_a_schedule_over_midnight() -> None:
    night = Schedule(start="0 22 * * *", end="0 6 * * *", replicas=2)
    assert [scheduled_floor((night,), at(f"2026-03-04 {hour}:00")) for hour in ("21", "23", "05", "06")] == [0, 2, 2, 0]


def test_a_period_that_begins_in_the_hour_which_summer_time_leaves_out_ends_on_the_same_day() -> None:
    morning = Schedule(start="30 2 * * *", end="15 3 * * *", replicas=8, time_zone="Europe/Berlin")
    times = ("2026-03-29 00:59", "2026-03-29 01:10", "2026-03-29 01:15", "2026-03-29 12:00", "2026-03-30 00:40")
    assert [scheduled_floor((morning,), at(time)) for time in times] == [0, 8, 0, 0, 8]
    left_out = Schedule(start="15 2 * * *", end="45 2 * * *", replicas=8, time_zone="Europe/Berlin")
    assert scheduled_floor((left_out,), at("2026-03-29 01:30")) == 0


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"start": "x"}, "fields"), ({"end": "x"}, "fields"), ({"replicas": 0}, "at least 1, got 0"),
        ({"time_zone": "Europe/Nowhere"}, "'Europe/Nowhere' is unknown"), ({"time_zone": "../etc"}, "unknown"),
    ],
)  # fmt: skip
def test_an_invalid_schedule_is_refused(values: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Schedule(**({"start": "* * * * *", "end": "* * * * *", "replicas": 1} | values))
