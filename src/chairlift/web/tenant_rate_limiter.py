"""TenantRateLimiter: limits each tenant's requests and tokens a minute, and its open requests."""

from collections.abc import Mapping

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import RateLimited
from chairlift.web.tenant_limits import TenantLimits
from chairlift.web.token_bucket import TokenBucket

MAX_TENANTS = 10_000


class TenantUsage:
    """Usage of one tenant.

    Attributes:
        open: number of open requests.
        requests: bucket of the requests a minute, None without a limit.
        tokens: bucket of the tokens a minute, None without a limit.
    """

    def __init__(self, limits: TenantLimits, now: float) -> None:
        self.open = 0
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self._buckets: dict[str, TokenBucket] = {}
        self.renew(limits, now)

    def renew(self, limits: TenantLimits, now: float) -> None:
        """Apply these limits from now on."""
        self.requests = self._bucket("requests", limits.tenant_requests_per_minute, now)
        self.tokens = self._bucket("tokens", limits.tenant_tokens_per_minute, now)

    def _bucket(self, name: str, per_minute: float | None, now: float) -> TokenBucket | None:
        """Return the bucket of a limit; a bucket whose limit was removed keeps its level for its return."""
        if per_minute is None:
            return None
        if name in self._buckets:
            self._buckets[name].resize(per_minute, now)
        return self._buckets.setdefault(name, TokenBucket(per_minute, now))


class TenantReservation:
    """Tokens that one request has reserved of its tenant's limit. Must be ended, once.

    Attributes:
        reserved_tokens: tokens that were taken of the limit; 0 without a limit.
    """

    def __init__(self, usage: TenantUsage, limits: TenantLimits, clock: Clock) -> None:
        self._usage = usage
        self._limits = limits
        self._clock = clock
        self.reserved_tokens = 0

    def reserve(self, tokens: int) -> None:
        """Reserve tokens. Raises RateLimited when the tenant has too few left."""
        bucket, now = self._usage.tokens, self._clock.now()
        if bucket is None:
            return
        if (seconds := bucket.seconds_until(tokens, now)) > 0:
            raise minute_used_up("tokens", self._limits.tenant_tokens_per_minute, seconds)
        bucket.take(tokens, now)
        self.reserved_tokens += tokens

    def release(self, tokens: int) -> None:
        """Return tokens of an earlier reserve()."""
        if self._usage.tokens is not None and self.reserved_tokens >= tokens:
            self._usage.tokens.take(-tokens, self._clock.now())
            self.reserved_tokens -= tokens

    def refund_request(self) -> None:
        """Refund the request: it was rejected because of other requests' load. end() follows."""
        if self._usage.requests is not None:
            self._usage.requests.take(-1, self._clock.now())

    def end(self, used: int) -> None:
        """End the request, which has used `used` tokens."""
        self._usage.open -= 1
        if self._usage.tokens is not None:
            self._usage.tokens.take(used - self.reserved_tokens, self._clock.now())


def minute_used_up(what: str, limit: float | None, seconds: float) -> RateLimited:
    """Return the error of a tenant that has used its requests or tokens of this minute."""
    message = f"your {what} of this minute are used up, the limit is {limit or 0:g} per minute"
    return RateLimited(message, retry_after=seconds)


def too_many_open(num_open: int, limit: int | None) -> RateLimited:
    """Return the error of a tenant that has as many requests open as its limit permits."""
    return RateLimited(f"{num_open} of your requests are open, the limit is {limit}")


class TenantRateLimiter:
    """Tracks and limits the usage of every tenant that has any. Belongs to one event loop."""

    def __init__(self, limits: TenantLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._usages: dict[str, TenantUsage] = {}

    def renew(self, limits: TenantLimits) -> None:
        """Apply other limits from now on; this minute's usage stays."""
        self._limits, now = limits, self._clock.now()
        for usage in self._usages.values():
            usage.renew(limits, now)

    @property
    def limits(self) -> TenantLimits:
        """The limits of each tenant."""
        return self._limits

    @property
    def usages(self) -> Mapping[str, TenantUsage]:
        """The usage of each tenant that has any."""
        return self._usages

    def begin(self, tenant: str, tokens: int = 0) -> TenantReservation:
        """Start a request and reserve `tokens`, as far as they are known. Raises RateLimited."""
        now, limits = self._clock.now(), self._limits
        usage = self._usage(tenant, now)
        if limits.tenant_max_open_requests is not None and usage.open >= limits.tenant_max_open_requests:
            raise too_many_open(usage.open, limits.tenant_max_open_requests)
        if usage.requests is not None and (seconds := usage.requests.seconds_until(1, now)) > 0:
            raise minute_used_up("requests", limits.tenant_requests_per_minute, seconds)
        reservation = TenantReservation(usage, limits, self._clock)
        reservation.reserve(tokens)
        if usage.requests is not None:
            usage.requests.take(1, now)
        usage.open += 1
        return reservation

    def _usage(self, tenant: str, now: float) -> TenantUsage:
        if tenant not in self._usages:
            if len(self._usages) >= MAX_TENANTS:
                self._usages = {name: usage for name, usage in self._usages.items() if usage.open}
            self._usages[tenant] = TenantUsage(self._limits, now)
        return self._usages[tenant]
