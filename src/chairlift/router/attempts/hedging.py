"""HedgeController: decides when a request whose first token is late gets a second attempt, and how many may.

The delay is a quantile of the pool's recent times to first token; each request adds a share of a hedge to the
allowance and each hedge takes one, so hedges never exceed the share of the requests (Dean and Barroso, "The Tail at
Scale", 2013).
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeConfig:
    """When requests are hedged.

    Attributes:
        quantile: of recent times to first token, above 0 and below 1; a later first token is hedged.
        max_share: hedges as a share of the requests, 0 to 1.
        max_saved: hedges that can be saved up for a burst.
        num_samples: times to first token that count as recent.
        min_samples: requests are hedged only after so many.
        min_delay_seconds: a first token that is no later is never hedged.
    """

    quantile: float = 0.95
    max_share: float = 0.05
    max_saved: float = 10.0
    num_samples: int = 512
    min_samples: int = 32
    min_delay_seconds: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"the hedge quantile must be above 0 and below 1, got {self.quantile:g}")
        if not 0 <= self.max_share <= 1:
            raise ConfigError(f"the share of hedged requests must be between 0 and 1, got {self.max_share:g}")
        if not 1 <= self.min_samples <= self.num_samples:
            raise ConfigError(f"hedging needs 1 to {self.num_samples} samples before it starts, got {self.min_samples}")


class HedgeController:
    """Keeps the recent times to first token of one pool and the allowance of hedges.

    Attributes:
        num_requests: requests since the start.
        num_hedges: hedges since the start.
    """

    def __init__(self, config: HedgeConfig | None = None) -> None:
        self._config = config or HedgeConfig()
        self.num_requests = self.num_hedges = 0
        self._allowance = 0.0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def record_request(self) -> None:
        """Count a request."""
        self.num_requests += 1
        self._allowance = min(self._config.max_saved, self._allowance + self._config.max_share)

    def record_first_token(self, seconds: float) -> None:
        """Add a request's time to its first token, counted from its first attempt."""
        if len(self._recent) == self._config.num_samples:
            # Equal times are the same number, so any of them may leave.
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(seconds)
        insort(self._sorted, seconds)

    def delay_seconds(self) -> float | None:
        """Return how long to wait for a first token before hedging; None while too little is known."""
        config, count = self._config, len(self._sorted)
        if count < config.min_samples:
            return None
        return max(config.min_delay_seconds, self._sorted[min(count - 1, int(count * config.quantile))])

    def acquire_hedge(self) -> bool:
        """Count a hedge if the allowance permits it."""
        if self._allowance < 1 - 1e-9:  # twenty times 0.05 is a little less than 1
            return False
        self._allowance -= 1
        self.num_hedges += 1
        return True

    def return_hedge(self) -> None:
        """Undo acquire_hedge for a hedge that found no replica."""
        self._allowance += 1
        self.num_hedges -= 1
