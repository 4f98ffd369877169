"""Schedule: a floor of the number of replicas between two times of cron expressions."""

from collections.abc import Iterable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from chairlift.autoscaler.limits.cron import parse_cron
from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A floor at certain times. Raises ConfigError.

    Attributes:
        start: cron expression of the times at which it begins, such as "0 8 * * mon-fri".
        end: cron expression of the times at which it ends.
        replicas: the floor.
        time_zone: name of the time zone of both, such as "Europe/Berlin".
    """

    start: str
    end: str
    replicas: int
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        parse_cron(self.start)
        parse_cron(self.end)
        if self.replicas < 1:
            raise ConfigError(f"replicas of a schedule must be at least 1, got {self.replicas}", option="schedules")
        try:
            ZoneInfo(self.time_zone)
        except (OSError, ValueError, LookupError):
            message = f"time zone {self.time_zone!r} is unknown to this machine; give a name such as Europe/Berlin"
            raise ConfigError(message, option="schedules") from None

    def is_active(self, wall_seconds: float) -> bool:
        """Return whether its last start is later than its last end."""
        zone = ZoneInfo(self.time_zone)
        start = parse_cron(self.start).last_before(wall_seconds, zone)
        end = parse_cron(self.end).last_before(wall_seconds, zone)
        return start is not None and (end is None or start > end)


def scheduled_floor(schedules: Iterable[Schedule], wall_seconds: float) -> int:
    """Return the highest floor of the schedules that are active; 0 if none is."""
    return max((each.replicas for each in schedules if each.is_active(wall_seconds)), default=0)
