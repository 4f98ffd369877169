"""Who is still alive: how long the other side may be silent, and how often a dead engine is started again."""

from collections import deque
from dataclasses import dataclass

from chairlift.core.errors import ConfigError

HEARTBEATS_PER_TIMEOUT = 5
SLOWEST_BACKOFF = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """Limits, in seconds, after which an engine in another process counts as gone.

    Attributes:
        heartbeat_timeout: silence; also what the engine grants a client that has not spawned it. Both sides speak five
            times in it.
        step_timeout: age of a step in progress.
        start_silence: silence while the engine starts: imports and loading may hold Python's lock for long.
        start_timeout: from the start of the process to the first request; also the age of a warm-up in progress.
        ask_timeout: wait for the answer to a question (a step in progress is waited for).
        stop_timeout: wait for an engine that was asked to stop; then it is killed.
        max_restarts: automatic restarts within restart_period; one more death is final.
        restart_period: see max_restarts.
        first_backoff: pause before the second restart in a row, doubled for each further one; the first has none.
    """

    heartbeat_timeout: float = 5.0
    step_timeout: float = 120.0
    start_heartbeat_timeout: float = 60.0
    start_timeout: float = 1800.0
    call_timeout: float = 150.0
    stop_timeout: float = 10.0
    max_restarts: int = 5
    restart_period: float = 300.0
    first_backoff: float = 0.5

    def __post_init__(self) -> None:
        for name in (
            "heartbeat_timeout", "step_timeout", "start_heartbeat_timeout", "start_timeout", "call_timeout",
            "stop_timeout",
            "restart_period",
        ):  # fmt: skip
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}", option=name)
        for name in ("max_restarts", "first_backoff"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {value}", option=name)

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat_timeout / HEARTBEATS_PER_TIMEOUT


class SilenceTimer:
    """How long the other side has said nothing, counted only while this side was awake to hear it.

    A listener that was stopped, swapped out or busy for a minute has not heard a minute of silence: one gap between
    two looks counts as two intervals at most.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._looked = now
        self._silent = 0.0

    def heard(self, now: float) -> None:
        """The other side spoke."""
        self._looked, self._silent = now, 0.0

    def look(self, now: float) -> float:
        """Return the seconds of silence; called after everything that had arrived was heard."""
        self._silent += min(now - self._looked, 2 * self._interval)
        self._looked = now
        return self._silent


class OperationTimer:
    """How long the latest of some things has gone on, counted as Silence counts."""

    def __init__(self, interval: float) -> None:
        self._began: float | None = None
        self._silence = SilenceTimer(interval, 0.0)

    def look(self, began: float | None, now: float) -> float:
        """Return its seconds; `began` says which it is: one that began at another time is another one, None is none."""
        if began is None:
            return 0.0
        if began != self._began:
            self._began = began
            self._silence.heard(began)
        return max(0.0, self._silence.look(now))


class RestartBackoff:
    """How often a dead engine may come back, and after which pause."""

    def __init__(self, config: LivenessConfig) -> None:
        self._config = config
        self._when: deque[float] = deque()
        self.count = 0

    def next(self, now: float) -> float | None:
        """Count a restart and return the seconds to wait before it; None when there were too many lately."""
        while self._when and self._when[0] <= now - self._config.restart_period:
            self._when.popleft()
        recent = len(self._when)
        if recent >= self._config.max_restarts:
            return None
        self._when.append(now)
        self.count += 1
        if recent == 0:
            return 0.0
        return min(self._config.first_backoff * 2.0 ** (recent - 1), SLOWEST_BACKOFF)
