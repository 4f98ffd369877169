"""RetryBudget: bounds how many retries all requests of a pool may have at a time, so that retries add no overload.

    allowed = active retries < max(min_concurrent, share x active requests)      as Envoy's retry_budget
              or one of min_per_second is left                                   as Finagle's RetryBudget

A retry is active from its decision until its first token or its end: a long stream after a failover holds nothing.
A retry that is required is counted, but never refused. It follows a replica that was lost (connection refused, reset or
closed, or no token while health checks fail, too) or goes on with a response that has begun. A lost replica does no
work any more, so such a retry moves load and adds none, and when one of three replicas dies, a third of all requests
must move at once. What is refused are retries that add load to replicas that are alive: after a 429, a 503, another
5xx, or a first token that is late.
"""

from dataclasses import dataclass

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetConfig:
    """Bounds of a RetryBudget.

    Attributes:
        share: active retries as a share of the active requests, 0 to 1.
        min_concurrent: active retries that are always allowed.
        min_per_second: retries a second that are always allowed; unused ones are kept for one second.
    """

    share: float = 0.2
    min_concurrent: int = 3
    min_per_second: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"the retry budget's share must be between 0 and 1, got {self.share:g}")
        if self.min_concurrent < 0:
            raise ConfigError(f"the retry budget's minimum must be 0 or more, got {self.min_concurrent}")
        if not 0 <= self.min_per_second < float("inf"):
            raise ConfigError(f"the retry budget's retries per second must be 0 or more, got {self.min_per_second:g}")


class RetryBudget:
    """Counts the active requests and retries of one pool.

    Attributes:
        active_requests: requests without a final answer.
        active_retries: retries without a first token.
        num_rejected: retries that were not allowed, since the start.
    """

    def __init__(self, config: RetryBudgetConfig | None = None) -> None:
        self._config = config or RetryBudgetConfig()
        self.active_requests = self.active_retries = self.num_rejected = 0
        self._num_saved = self._config.min_per_second
        self._saved_at: float | None = None

    def start_request(self) -> None:
        """Count a request; end_request follows exactly once."""
        self.active_requests += 1

    def end_request(self) -> None:
        """Count a request no longer."""
        assert self.active_requests > 0, "end_request without start_request"
        self.active_requests -= 1

    def acquire_retry(self, now: float, *, is_required: bool = False) -> bool:
        """Count a retry if the budget allows it or it is required; release_retry follows exactly once if True."""
        if not is_required and not self._allows(now):
            self.num_rejected += 1
            return False
        self.active_retries += 1
        return True

    def release_retry(self) -> None:
        """Count a retry no longer."""
        assert self.active_retries > 0, "release_retry without acquire_retry"
        self.active_retries -= 1

    def _allows(self, now: float) -> bool:
        config = self._config
        if self.active_retries < max(config.min_concurrent, config.share * self.active_requests):
            return True
        elapsed = 0.0 if self._saved_at is None else max(0.0, now - self._saved_at)
        self._saved_at = now
        self._num_saved = min(config.min_per_second, self._num_saved + elapsed * config.min_per_second)
        if self._num_saved < 1:
            return False
        self._num_saved -= 1
        return True
