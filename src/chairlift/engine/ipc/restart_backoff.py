"""RestartBackoff: the wait before a failed engine is restarted."""

from collections import deque

from chairlift.engine.ipc.liveness_limits import LivenessConfig

SLOWEST_BACKOFF = 30.0


class RestartBackoff:
    """Limits the restarts of a failed engine and returns the pause before each."""

    def __init__(self, config: LivenessConfig) -> None:
        self._config = config
        self._restart_times: deque[float] = deque()
        self.count = 0

    def next(self, now: float) -> float | None:
        """Count a restart and return the seconds to wait before it.

        Returns None when max_restarts was reached within restart_period.
        """
        while self._restart_times and self._restart_times[0] <= now - self._config.restart_period:
            self._restart_times.popleft()
        recent = len(self._restart_times)
        if recent >= self._config.max_restarts:
            return None
        self._restart_times.append(now)
        self.count += 1
        if recent == 0:
            return 0.0
        return min(self._config.first_backoff * 2.0 ** (recent - 1), SLOWEST_BACKOFF)
