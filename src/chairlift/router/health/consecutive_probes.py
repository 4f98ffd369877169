"""ConsecutiveProbes: judges a replica by the results of its probes, and says when the next probe is due."""

from dataclasses import dataclass
from random import Random

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """How replicas are probed. Raises ConfigError.

    Attributes:
        interval_seconds: time between two probes of a replica.
        start_interval_seconds: the same while the replica has never been healthy.
        timeout_seconds: longest time of one request of a probe.
        max_failures: failed probes in a row that make a healthy replica unhealthy.
        min_successes: successful probes in a row that make an unhealthy replica healthy.
        jitter: share of the interval by which it varies, so that routers do not probe in step.
    """

    interval_seconds: float = 5.0
    start_interval_seconds: float = 1.0
    timeout_seconds: float = 2.0
    max_failures: int = 3
    min_successes: int = 2
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("interval_seconds", "start_interval_seconds", "timeout_seconds"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ConfigError(f"{name} of probes must be a number of seconds above 0, got {value:g}")
        for name in ("max_failures", "min_successes"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} of probes must be at least 1, got {value}")
        if not 0 <= self.jitter < 1:
            raise ConfigError(f"jitter of probes must be between 0 and 1, got {self.jitter:g}")


class ConsecutiveProbes:
    """The verdict of a replica's probes.

    Attributes:
        is_healthy: the verdict; None before the first probe, which decides alone.
        num_consecutive_failures: failed probes since the last successful one.
    """

    def __init__(self, config: ProbeConfig, *, is_healthy: bool | None = None) -> None:
        self.is_healthy = is_healthy
        self.num_consecutive_failures = 0
        self._num_consecutive_successes = 0
        self._has_been_healthy = bool(is_healthy)
        self._config = config

    def record(self, *, is_success: bool) -> bool:
        """Count the result of a probe; return whether the verdict has changed."""
        config, old = self._config, self.is_healthy
        if is_success:
            self._num_consecutive_successes += 1
            self.num_consecutive_failures = 0
            # A replica that starts is used after its first success; only one that has failed must prove itself.
            if not self._has_been_healthy or self._num_consecutive_successes >= config.min_successes:
                self.is_healthy = self._has_been_healthy = True
        else:
            self.num_consecutive_failures += 1
            self._num_consecutive_successes = 0
            if old is None or self.num_consecutive_failures >= config.max_failures:
                self.is_healthy = False
        return self.is_healthy is not old

    def next_delay_seconds(self, random: Random) -> float:
        """Return the seconds until the next probe."""
        config = self._config
        seconds = config.interval_seconds
        if not self._has_been_healthy:
            seconds = min(seconds, config.start_interval_seconds)
        return seconds * (1 + config.jitter * (2 * random.random() - 1))
