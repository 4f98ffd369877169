"""Breaker: ejects a replica by the outcomes of its requests, and lets one trial request decide on its return.

    HEALTHY ── max_failures in a row, or error_share ──> EJECTED ── recovery_timeout × n ──> PROBING
       ^                                                   ^                                  │   │
       │                                                   └──────────── trial: fault ────────┘   │
       └───────────────────────────────── trial: success ─────────────────────────────────────────┘

Pure: `now` is passed in. The breaker only asks for an ejection; the replica set, which knows the pool, decides.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from chairlift.core.errors import ConfigError
from chairlift.router.health.health_state import TransitionCause

NUM_WINDOW_PARTS = 6
"""The window of the error share moves on by this part of its length."""

TRIAL_INTERVAL_SECONDS = 1.0
"""Time between the beginnings of two trials; a replica that answers each of them with 429 costs few retries."""


class HealthOutcome(StrEnum):
    """What a request says about its replica's health."""

    FAULT = "fault"  # connection, timeout, 5xx other than 503, stream cut
    SUCCESS = "success"
    NEUTRAL = "neutral"  # 4xx, 429, 503, client disconnected


class BreakerState(StrEnum):
    """The state of a breaker."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When a replica is ejected and for how long. Raises ConfigError.

    Attributes:
        max_failures: faults in a row that eject.
        error_share: share of faults in the window that ejects, above 0; above 1 never ejects.
        window_seconds: length of that window.
        min_requests: successes and faults that the window must have for a verdict.
        recovery_timeout_seconds: length of the first ejection; the n-th takes n times as long.
        max_ejection_seconds: longest ejection; as long a healthy time takes back one n.
    """

    max_failures: int = 3
    error_share: float = 0.5
    window_seconds: float = 30.0
    min_requests: int = 20
    recovery_timeout_seconds: float = 30.0
    max_ejection_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ConfigError(f"max_failures must be at least 1, got {self.max_failures}")
        if self.min_requests < 1:
            raise ConfigError(f"min_requests must be at least 1, got {self.min_requests}")
        if not self.error_share > 0:
            raise ConfigError(f"error_share must be above 0, got {self.error_share:g}")
        for name in ("window_seconds", "recovery_timeout_seconds", "max_ejection_seconds"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ConfigError(f"{name} must be a number of seconds above 0, got {value:g}")


@dataclass(frozen=True, slots=True)
class EjectionWish:
    """A verdict of the breaker that its replica should be ejected."""

    cause: TransitionCause
    reason: str


class Breaker:
    """The breaker of one replica.

    Attributes:
        state: HEALTHY, EJECTED or PROBING.
        num_ejections: ejections since the start.
        ejected_until: monotonic seconds at which the ejection ends, of the last ejection.
        epoch: number of the replica's ejections and resets; outcomes of requests from an older epoch do not count.
    """

    def __init__(self, config: BreakerConfig) -> None:
        self.state = BreakerState.HEALTHY
        self.num_ejections = 0
        self.ejected_until = 0.0
        self.epoch = 0
        self._config = config
        self._multiplier = 0
        self._healthy_since = 0.0
        self._num_consecutive_faults = 0
        self._window = _OutcomeWindow(config.window_seconds)
        self._has_trial = False
        self._next_trial_at = 0.0

    def has_due_trial(self, now: float) -> bool:
        """Return whether the next request is to be the trial request."""
        return self.state is BreakerState.PROBING and not self._has_trial and now >= self._next_trial_at

    def record(self, outcome: HealthOutcome, now: float, *, epoch: int) -> EjectionWish | None:
        """Count the outcome of a request that began in `epoch`; only a healthy replica's outcomes count.

        Returns why the replica should be ejected, or None. A wish that is not granted comes again at the next fault.
        """
        # A request from before the ejection says nothing about a replica that has returned.
        if outcome is HealthOutcome.NEUTRAL or self.state is not BreakerState.HEALTHY or epoch != self.epoch:
            return None
        is_fault = outcome is HealthOutcome.FAULT
        self._num_consecutive_faults = self._num_consecutive_faults + 1 if is_fault else 0
        num_faults, num_outcomes = self._window.add(is_fault, now)
        if not is_fault:
            return None
        config = self._config
        if self._num_consecutive_faults >= config.max_failures:
            reason = f"{self._num_consecutive_faults} requests in a row failed, the limit is {config.max_failures}"
            return EjectionWish(TransitionCause.CONSECUTIVE_FAULTS, reason)
        if num_outcomes >= config.min_requests and num_faults >= config.error_share * num_outcomes:
            reason = (
                f"{num_faults} of {num_outcomes} requests failed within {config.window_seconds:g} s, "
                f"the limit is {config.error_share:.0%}"
            )
            return EjectionWish(TransitionCause.ERROR_SHARE, reason)
        return None

    def eject(self, now: float, *, seconds: float | None = None) -> None:
        """Eject the replica: for its n-th time n × recovery_timeout, or for `seconds`, which other routers chose."""
        # A failed trial ejects again without a healthy time in between, and takes nothing back.
        if self.state is BreakerState.HEALTHY:
            healthy_seconds = max(0.0, now - self._healthy_since)
            self._multiplier -= min(self._multiplier, int(healthy_seconds / self._config.max_ejection_seconds))
        self._multiplier += 1
        self.num_ejections += 1
        self.state = BreakerState.EJECTED
        limit = self._config.max_ejection_seconds
        if seconds is None:
            seconds = self._multiplier * self._config.recovery_timeout_seconds
        self.ejected_until = now + min(max(0.0, seconds), limit)
        self._start_epoch()

    def advance(self, now: float) -> bool:
        """Go from EJECTED to PROBING if the ejection is over; return whether it is."""
        if self.state is not BreakerState.EJECTED or now < self.ejected_until:
            return False
        self.state = BreakerState.PROBING
        return True

    def skip_ejection(self) -> None:
        """Go to PROBING with a new trial, because the replica's process is a new one."""
        self.state = BreakerState.PROBING
        self._start_epoch()

    def begin_trial(self, now: float) -> None:
        """Reserve the trial for one request."""
        assert self.has_due_trial(now), "a trial is open already, or none is due"
        self._has_trial = True
        self._next_trial_at = now + TRIAL_INTERVAL_SECONDS

    def end_trial(self, outcome: HealthOutcome, now: float, *, epoch: int) -> bool:
        """End the trial: close the breaker at a success, eject again at a fault.

        Returns whether the state has changed. A trial from an older epoch does not count, a neutral one says nothing.
        """
        if self.state is not BreakerState.PROBING or epoch != self.epoch or outcome is HealthOutcome.NEUTRAL:
            return False
        if outcome is HealthOutcome.SUCCESS:
            self.close(now)
        else:
            self.eject(now)
        return True

    def cancel_trial(self, *, epoch: int) -> None:
        """Leave the trial to the next request: the last one ended without an outcome."""
        # The trial of an older epoch must not free the place of the present one.
        if epoch == self.epoch:
            self._has_trial = False

    def close(self, now: float) -> None:
        """Return to HEALTHY with counts of zero; the length of the next ejection is kept."""
        self.state = BreakerState.HEALTHY
        self._healthy_since = now
        self._start_epoch()

    def _start_epoch(self) -> None:
        self.epoch += 1
        self._has_trial = False
        self._next_trial_at = 0.0
        self._num_consecutive_faults = 0
        self._window.clear()


class _OutcomeWindow:
    """Counts of faults and outcomes of the last seconds, in NUM_WINDOW_PARTS parts."""

    def __init__(self, window_seconds: float) -> None:
        self._part_seconds = window_seconds / NUM_WINDOW_PARTS
        self._parts: deque[list[int]] = deque(maxlen=NUM_WINDOW_PARTS)  # [part number, faults, outcomes]

    def add(self, is_fault: bool, now: float) -> tuple[int, int]:
        """Count an outcome and return the window's faults and outcomes."""
        number = int(now / self._part_seconds)
        # A time before the newest part counts to that one, so the parts stay in order.
        if not self._parts or self._parts[-1][0] < number:
            self._parts.append([number, 0, 0])
        self._parts[-1][1] += is_fault
        self._parts[-1][2] += 1
        while self._parts[0][0] <= number - NUM_WINDOW_PARTS:
            self._parts.popleft()
        return sum(part[1] for part in self._parts), sum(part[2] for part in self._parts)

    def clear(self) -> None:
        """Set every count to zero."""
        self._parts.clear()
