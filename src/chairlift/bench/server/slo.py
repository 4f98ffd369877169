"""SLO: the latency limits of a good response."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.core.errors import ConfigError


def e2e_seconds(record: HttpRequestRecord) -> float:
    """Return the seconds from a request's due time to its end."""
    return record.ended - record.due


def _widest_gap(record: HttpRequestRecord) -> float:
    return max((after - before for before, after in pairwise(record.arrivals)), default=0.0)


MEASURES: Mapping[str, Callable[[HttpRequestRecord], float | None]] = {
    "ttft": lambda record: record.ttft,
    "tpot": lambda record: record.tpot or 0.0,
    "itl": _widest_gap,
    "e2e": e2e_seconds,
}


@dataclass(frozen=True, slots=True)
class SLO:
    """Limits of one request in seconds; ttft and e2e count from its due time, itl is its longest gap."""

    limits: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if name not in MEASURES:
                raise ConfigError(f"--slo has no limit {name!r}; available are {', '.join(MEASURES)}", option="slo")
            if not 0 < limit < math.inf:
                raise ConfigError(f"--slo: {name} must be a positive number of seconds, got {limit:g}", option="slo")

    def is_met(self, record: HttpRequestRecord) -> bool:
        """Return whether a request succeeded with at least one token and within every limit."""
        if record.outcome is not Outcome.OK or not record.arrivals:
            return False
        return all(
            (value := MEASURES[name](record)) is not None and value <= limit for name, limit in self.limits.items()
        )
