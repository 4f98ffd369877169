"""HealthConfig: settings of the health of replicas; `may_eject` and `slow_start_factor`, its two formulas."""

from dataclasses import dataclass, field

from chairlift.core.errors import ConfigError
from chairlift.router.health.breaker import BreakerConfig
from chairlift.router.health.consecutive_probes import ProbeConfig
from chairlift.router.health.outliers import OutlierConfig

MIN_SLOW_START_SHARE = 0.1
"""Share of its weight that a replica has at the beginning of its slow start."""

MAX_EJECTED_SHARE = 0.5
"""Largest share of a pool that is ejected: more than half of a pool is rather the router's network, or the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Settings of the health of replicas. Raises ConfigError.

    Attributes:
        probes: active probes.
        breaker: ejection by outcomes.
        outliers: ejection by latency.
        slow_start_seconds: time in which the weight of a returned or added replica grows to its full value; 0 for none.
        has_active_probes: whether probes run; without them an added replica is healthy at once.
    """

    probes: ProbeConfig = field(default_factory=ProbeConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    outliers: OutlierConfig = field(default_factory=OutlierConfig)
    slow_start_seconds: float = 30.0
    has_active_probes: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.slow_start_seconds < float("inf"):
            raise ConfigError(f"slow_start_seconds must be at least 0, got {self.slow_start_seconds:g}")


def may_eject(num_ejected: int, pool_size: int) -> bool:
    """Return whether a pool with `num_ejected` ejected replicas may eject one more."""
    return num_ejected + 1 <= MAX_EJECTED_SHARE * pool_size


def slow_start_factor(age_seconds: float, slow_start_seconds: float) -> float:
    """Return the share of its weight that a replica has `age_seconds` after its return: linear, 0.1 to 1."""
    if age_seconds >= slow_start_seconds:
        return 1.0
    return max(MIN_SLOW_START_SHARE, age_seconds / slow_start_seconds)
