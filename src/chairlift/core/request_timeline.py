"""Timeline, TimelineEvent: what happened to a request, and when."""

from dataclasses import dataclass
from typing import NamedTuple


class TimelineEvent(NamedTuple):
    """One event of a request."""

    name: str  # queued, scheduled, preempted, first_token, finished, ...
    at: float  # seconds since the request was queued
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of a request and its wait times.

    Attributes:
        events: in order of time; the first is `queued` at 0.
        wait_seconds: seconds in the waiting queue by reason: budget, blocks, running_limit, policy, prefix.
    """

    events: tuple[TimelineEvent, ...]
    wait_seconds: tuple[tuple[str, float], ...] = ()
