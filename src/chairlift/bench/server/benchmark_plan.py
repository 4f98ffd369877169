"""BenchmarkPlan: what a server benchmark measures: its phases, their load and their durations."""

import math
from dataclasses import dataclass, field

from chairlift.bench.server.loadgen import EVEN, POISSON
from chairlift.bench.server.slo import SLO
from chairlift.core.errors import ConfigError

DURATION = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """The load of a benchmark and its limits.

    Attributes:
        rate: requests per second of each open-loop phase.
        concurrency: number of closed-loop clients; None without a closed loop.
        overload: load of each open-loop phase as a multiple of the capacity, which is measured first.
        queueing: whether the overloaded server queues requests rather than shedding them by expected wait.
        rounds: number of repetitions of an overload test; medians are judged, because a machine's speed varies.
        duration: seconds of a phase; None when `requests` bounds it.
        requests: most requests of a phase.
        arrivals: POISSON or EVEN.
        seed: seed of the arrival times.
        pause: seconds between phases.
        timeout: time limit of a request in seconds.
        slo: limits of a good response.

    Raises ConfigError for invalid values.
    """

    rate: tuple[float, ...] = ()
    concurrency: int | None = None
    overload: tuple[float, ...] = ()
    queueing: bool = False
    rounds: int = 1
    duration: float | None = None
    requests: int | None = None
    arrivals: str = POISSON
    seed: int = 0
    pause: float = 2.0
    timeout: float = 120.0
    slo: SLO = field(default_factory=lambda: SLO({}))

    def __post_init__(self) -> None:
        if self.rate and (self.overload or self.concurrency is not None):
            raise ConfigError("--rate cannot be given together with --concurrency or --overload", option="rate")
        for name, values in (("rate", self.rate), ("overload", self.overload)):
            for value in values:
                if not 0 < value < math.inf:
                    raise ConfigError(f"each value of --{name} must be a positive number, got {value:g}", option=name)
        for name in ("duration", "timeout"):
            if (seconds := getattr(self, name)) is not None and not 0 < seconds < math.inf:
                raise ConfigError(f"--{name} must be a positive number of seconds, got {seconds:g}", option=name)
        if self.queueing and not self.overload:
            raise ConfigError("--queueing needs --overload", option="queueing")
        if self.rounds > 1 and not self.overload:
            raise ConfigError("--rounds needs --overload", option="rounds")
        for name in ("concurrency", "requests", "rounds"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ConfigError(f"--{name} must be at least 1, got {count}", option=name)
        if not 0 <= self.pause < math.inf:
            raise ConfigError(f"--pause must be at least 0 seconds, got {self.pause:g}", option="pause")
        if self.arrivals not in (POISSON, EVEN):
            raise ConfigError(f"--arrivals must be {POISSON} or {EVEN}, got {self.arrivals!r}", option="arrivals")

    @property
    def seconds(self) -> float:
        """Seconds of a phase; infinity when only `requests` bounds it."""
        if self.duration is None:
            return DURATION if self.requests is None else math.inf
        return self.duration
