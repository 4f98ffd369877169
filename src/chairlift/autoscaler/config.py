"""AutoscalerConfig: what an operator sets: bounds, targets of the rules, windows, budget, schedules and thresholds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.autoscaler.limits.schedule import Schedule
from chairlift.core.errors import ConfigError

NO_PRICES: Mapping[str, float] = {}


def check_range(name: str, value: float | None, low: float, high: float = math.inf, *, is_open: bool = True) -> None:
    """Raise ConfigError unless the value is None or between the bounds; an open range lacks its lower bound."""
    if value is None:
        return
    is_inside = low < value if is_open else low <= value
    if not (is_inside and value <= high and math.isfinite(value)):
        bound = "above" if is_open else "at least"
        limit = f" and at most {high:g}" if high < math.inf else ""
        raise ConfigError(f"{name} must be {bound} {low:g}{limit}, got {value:g}", option=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTarget:
    """A metric from outside, for example of a Prometheus query, with its target. Raises ConfigError.

    Attributes:
        name: its key in PoolSample.external.
        target: the value that one replica stands for, or the value at which the pool has the right size.
        is_ratio: False if the value is a total that is divided among the replicas, True if it is an average over
            the replicas, like a utilisation.
    """

    name: str
    target: float
    is_ratio: bool = False

    def __post_init__(self) -> None:
        check_range(f"target of the external metric {self.name!r}", self.target, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """What the rules aim at; a rule whose target is None is off. Raises ConfigError.

    Attributes:
        wait_seconds: expected wait of a request that arrives now.
        drain_seconds: time within which requests that wait longer than that are to be served, after a burst; at least
            the time of a cold start.
        concurrency_ratio: running requests of a replica as a share of those that it can run.
        concurrency: running requests of a replica; used instead of concurrency_ratio.
        kv_usage_ratio: share of the KV cache that requests hold.
        ttft_seconds: SLO of the time to the first token, for the quantile that the samples have.
        itl_seconds: SLO of the inter-token latency, likewise.
        cpu_ratio: share of its CPUs that a replica uses.
        memory_ratio: share of its memory that a replica uses.
        gpu_ratio: share of its GPUs' time that a replica uses.
        external: targets of further metrics.
    """

    wait_seconds: float | None = 1.0
    drain_seconds: float = 30.0
    concurrency_ratio: float | None = 0.7
    concurrency: float | None = None
    kv_usage_ratio: float | None = 0.8
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    cpu_ratio: float | None = None
    memory_ratio: float | None = None
    gpu_ratio: float | None = None
    external: tuple[ExternalTarget, ...] = ()

    def __post_init__(self) -> None:
        for name in ("wait_seconds", "drain_seconds", "concurrency", "ttft_seconds", "itl_seconds"):
            check_range(name, getattr(self, name), 0)
        for name in ("concurrency_ratio", "kv_usage_ratio", "cpu_ratio", "memory_ratio", "gpu_ratio"):
            check_range(name, getattr(self, name), 0, 1)
        names = [each.name for each in self.external]
        if len(set(names)) < len(names):
            raise ConfigError(f"names of external metrics must differ, got {', '.join(names)}", option="external")


def normal_wait_seconds(targets: TargetConfig) -> float:
    """Return the wait up to which a request counts as on its way: the target, or one second without a target."""
    return targets.wait_seconds if targets.wait_seconds is not None else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """How fast the target follows the load. Raises ConfigError.

    Attributes:
        stable_seconds: window of the averages that targets follow, and length of a panic after its last cause.
        panic_seconds: window of the averages in a panic.
        panic_factor: a panic begins when the short window needs this many times the ready replicas.
        tolerance: share by which the need may exceed the replicas before the pool grows.
        stabilisation_seconds: the pool shrinks to the highest need of this time at most.
        shrink_margin: share by which the load may rise after the pool has shrunk, before it would grow again.
        reversal_seconds: the pool does not shrink for this time after a growth that took a shrinking back.
        max_gap_seconds: a newest sample older than this is missing data; a gap longer than this between two samples
            makes older ones worthless.
    """

    stable_seconds: float = 60.0
    panic_seconds: float = 6.0
    panic_factor: float = 2.0
    tolerance: float = 0.1
    stabilisation_seconds: float = 300.0
    shrink_margin: float = 0.2
    reversal_seconds: float = 600.0
    max_gap_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("stable_seconds", "panic_seconds", "max_gap_seconds"):
            check_range(name, getattr(self, name), 0)
        for name in ("tolerance", "stabilisation_seconds", "shrink_margin", "reversal_seconds"):
            check_range(name, getattr(self, name), 0, is_open=False)
        check_range("panic_factor", self.panic_factor, 1)
        if self.panic_seconds > self.stable_seconds:
            message = (
                f"panic_seconds must be at most stable_seconds ({self.stable_seconds:g}), got {self.panic_seconds:g}"
            )
            raise ConfigError(message, option="panic_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """What the pool may cost. Raises ConfigError.

    Attributes:
        cost_per_hour: most that all replicas together may cost in an hour, draining ones included; None for no limit.
        prices: price of a replica per hour, by its type.
        replica_type: type of the replicas that are started.
    """

    cost_per_hour: float | None = None
    prices: Mapping[str, float] = field(default_factory=lambda: NO_PRICES)
    replica_type: str = ""

    def __post_init__(self) -> None:
        check_range("cost_per_hour", self.cost_per_hour, 0, is_open=False)
        for name, price in self.prices.items():
            check_range(f"price of replica type {name!r}", price, 0, is_open=False)
        if self.cost_per_hour is not None and self.replica_type not in self.prices:
            message = f"cost_per_hour needs a price of replica type {self.replica_type!r}"
            raise ConfigError(message, option="prices")

    def price(self, replica_type: str) -> float:
        """Return the price of a replica per hour; of an unknown type the highest of all prices."""
        return self.prices.get(replica_type, max(self.prices.values(), default=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """How much the pool may change in a period; of several limits the most generous holds. Raises ConfigError.

    Attributes:
        num_replicas: replicas.
        ratio: share of the replicas at the beginning of the period.
        period_seconds: length of the period.
    """

    num_replicas: int = 0
    ratio: float = 0.0
    period_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_range("num_replicas of a step limit", self.num_replicas, 0, is_open=False)
        check_range("ratio of a step limit", self.ratio, 0, is_open=False)
        check_range("period_seconds of a step limit", self.period_seconds, 0)
        if not self.num_replicas and not self.ratio:
            raise ConfigError("a step limit needs num_replicas or ratio above 0", option="step_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdConfig:
    """Threshold mode: one replica more or less when a value has been beyond a bound for a time. Raises ConfigError.

    Attributes:
        cpu_high: average share of CPUs above which the pool grows; None to leave CPUs out, likewise below.
        cpu_low: average share of CPUs below which the pool shrinks.
        memory_high: average share of memory above which the pool grows.
        memory_low: average share of memory below which the pool shrinks.
        queue_high: waiting requests per ready replica above which the pool grows.
        queue_low: waiting requests per ready replica below which the pool shrinks.
        grow_seconds: time that any one value must be above its bound.
        shrink_seconds: time that all values must be below their bounds.
        cooldown_seconds: time after a change without another one.
    """

    cpu_high: float | None = 0.7
    cpu_low: float | None = 0.3
    memory_high: float | None = None
    memory_low: float | None = None
    queue_high: float | None = 10.0
    queue_low: float | None = 1.0
    grow_seconds: float = 60.0
    shrink_seconds: float = 300.0
    cooldown_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "queue"):
            high, low = getattr(self, f"{name}_high"), getattr(self, f"{name}_low")
            check_range(f"{name}_high", high, 0)
            check_range(f"{name}_low", low, 0, is_open=False)
            if (high is None) != (low is None) or (high is not None and not low < high):
                raise ConfigError(f"{name}_low must be below {name}_high, got {low} and {high}", option=f"{name}_low")
        for name in ("grow_seconds", "shrink_seconds", "cooldown_seconds"):
            check_range(name, getattr(self, name), 0, is_open=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """Every setting of the autoscaler of one pool. Raises ConfigError.

    Attributes:
        min_replicas: fewest replicas; 0 for scale to zero.
        max_replicas: most replicas, draining ones included.
        interval_seconds: time between two decisions.
        targets: targets of the rules.
        windows: how fast the target follows the load.
        budget: what the pool may cost.
        idle_seconds: with min_replicas 0 the pool goes to zero after this time without any request.
        cold_start_seconds: time from the order of a replica until it serves, until starts have been measured.
        schedules: floors at certain times.
        growth_limits: how fast the pool may grow; empty for no limit.
        shrink_limits: how fast the pool may shrink; empty for no limit.
        thresholds: threshold mode instead of target tracking; None for target tracking.
        version: version of the replicas that are started; others are removed first. "" if unknown.
        is_dry_run: decide and log, change nothing.
        sample_timeout_seconds: longest time of one sample.
        apply_timeout_seconds: longest time of one change.
    """

    min_replicas: int = 1
    max_replicas: int = 4
    interval_seconds: float = 2.0
    targets: TargetConfig = field(default_factory=TargetConfig)
    windows: WindowConfig = field(default_factory=WindowConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    idle_seconds: float = 600.0
    cold_start_seconds: float = 60.0
    schedules: tuple[Schedule, ...] = ()
    growth_limits: tuple[StepLimit, ...] = ()
    shrink_limits: tuple[StepLimit, ...] = ()
    thresholds: ThresholdConfig | None = None
    version: str = ""
    is_dry_run: bool = False
    sample_timeout_seconds: float = 10.0
    apply_timeout_seconds: float = 20.0

    def __post_init__(self) -> None:
        check_range("min_replicas", self.min_replicas, 0, is_open=False)
        check_range("max_replicas", self.max_replicas, 0)
        if self.min_replicas > self.max_replicas:
            message = f"min_replicas must be at most max_replicas ({self.max_replicas}), got {self.min_replicas}"
            raise ConfigError(message, option="min_replicas")
        for name in ("interval_seconds", "cold_start_seconds", "sample_timeout_seconds", "apply_timeout_seconds"):
            check_range(name, getattr(self, name), 0)
        check_range("idle_seconds", self.idle_seconds, 0, is_open=False)
        check_range("interval_seconds", self.interval_seconds, 0, self.windows.max_gap_seconds)
        self._check_cost()

    def _check_cost(self) -> None:
        budget = self.budget
        if budget.cost_per_hour is None:
            return
        cost = max(1, self.min_replicas) * budget.price(budget.replica_type)
        if cost > budget.cost_per_hour:
            message = (
                f"{max(1, self.min_replicas)} replicas cost {cost:g} per hour, the limit is {budget.cost_per_hour:g}; "
                "raise cost_per_hour or lower min_replicas"
            )
            raise ConfigError(message, option="cost_per_hour")
