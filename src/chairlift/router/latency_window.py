"""LatencyWindow: quantiles of the latencies of the last minute."""

import math
from collections import deque

WINDOW_SECONDS = 60.0
MAX_VALUES = 4096
"""Values that are kept; of more in a window the newest count."""


class LatencyWindow:
    """Recent latencies with their times."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)

    def add(self, seconds: float, now: float) -> None:
        """Add one latency."""
        self._values.append((now, seconds))

    def quantile(self, share: float, now: float) -> float | None:
        """Return the smallest latency that at least this share of the window is not above; None without any."""
        values = sorted(seconds for at, seconds in self._values if at > now - WINDOW_SECONDS)
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None
