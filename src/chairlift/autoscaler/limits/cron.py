"""CronExpression: five fields that name minutes of local time, and the last such minute before a moment."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from chairlift.core.errors import ConfigError

FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NAMES = {
    "month": {name: number for number, name in enumerate(MONTHS, 1)},
    "day of week": {name: number for number, name in enumerate(WEEKDAYS)},
}
MAX_DAYS_BACK = 8 * 366 + 1
"""Longest time between two days of an expression: 29 February, over a century year that is not a leap year."""


@dataclass(frozen=True, slots=True)
class CronExpression:
    """Minutes at which something happens, in local time.

    Times that a change to summer time leaves out happen when the clock is put forward, so that times keep their order.
    Times that the change back repeats happen once, the first time.

    Attributes:
        minutes: minutes of an hour, ascending, likewise below.
        hours: hours of a day.
        days: days of a month.
        months: months, January is 1.
        weekdays: days of the week, Sunday is 0.
        needs_both_days: a day has to match both `days` and `weekdays`; otherwise one of them is enough.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    needs_both_days: bool

    def last_before(self, at_seconds: float, zone: ZoneInfo) -> float | None:
        """Return the last time at or before a time, in seconds since 1970 UTC; None if there is none in eight years."""
        today = datetime.fromtimestamp(at_seconds, zone).date()
        for days_back in range(MAX_DAYS_BACK):
            day = today - timedelta(days=days_back)
            if self._has_day(day) and (times := [at for at in self._times(day, zone) if at <= at_seconds]):
                return max(times)
        return None

    def _has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        matches = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return all(matches) if self.needs_both_days else any(matches)

    def _times(self, day: date, zone: ZoneInfo) -> list[float]:
        return [
            _timestamp(datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone), zone)
            for hour in self.hours
            for minute in self.minutes
        ]


def _timestamp(at: datetime, zone: ZoneInfo) -> float:
    """Return the time of a local time; that of the change where the local time does not exist."""
    later, earlier = at.timestamp(), at.replace(fold=1).timestamp()
    if later <= earlier:
        return later
    offset = datetime.fromtimestamp(earlier, zone).utcoffset()
    while later - earlier > 1:
        middle = (later + earlier) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            earlier = middle
        else:
            later = middle
    return later


@lru_cache(maxsize=256)
def parse_cron(text: str) -> CronExpression:
    """Return the expression: minute, hour, day of month, month, day of week. Raises ConfigError.

    A field is `*`, a number, a range `a-b`, each of them with a step `/n`, or several separated by commas. Months and
    days of the week have English names of three characters, too. As in cron, a day matches if it matches the day of the
    month or the day of the week where both are restricted.
    """
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise ConfigError(f"cron expression {text!r} has {len(fields)} fields, it needs {len(FIELDS)}")
    values = [_parse_field(field, *FIELDS[index], text) for index, field in enumerate(fields)]
    weekdays = tuple(sorted({number % 7 for number in values[4]}))
    needs_both_days = fields[2].startswith("*") or fields[4].startswith("*")
    return CronExpression(values[0], values[1], values[2], values[3], weekdays, needs_both_days)


def _parse_field(field: str, name: str, low: int, high: int, text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in field.split(","):
        bounds, has_step, step_text = part.partition("/")
        first_text, has_range, last_text = bounds.partition("-")
        step = _parse_number(step_text, name, 1, high, text) if has_step else 1
        if bounds == "*":
            first, last = low, high
        else:
            first = _parse_number(first_text, name, low, high, text)
            last = _parse_number(last_text, name, low, high, text) if has_range else high if has_step else first
        if first > last:
            raise ConfigError(f"cron expression {text!r}: the range {bounds} of the {name} is empty")
        numbers.update(range(first, last + 1, step))
    return tuple(sorted(numbers))


def _parse_number(number: str, name: str, low: int, high: int, text: str) -> int:
    value = NAMES.get(name, {}).get(number.lower())
    if value is None:
        if not (number.isascii() and number.isdigit()):
            raise ConfigError(f"cron expression {text!r}: {number!r} is no {name}")
        value = int(number[:9])
    if not low <= value <= high:
        raise ConfigError(f"cron expression {text!r}: the {name} must be between {low} and {high}, got {value}")
    return value
