"""Limits: what a tenant may use of a minute, and at the same time."""

import math
from dataclasses import dataclass

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError, RateLimited
from chairlift.core.validation import format_value

MAX_TENANTS = 10_000
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What each tenant may use; None is no limit.

    Attributes:
        requests_per_minute: that are begun.
        tokens_per_minute: of prompts and outputs.
        open_requests: at the same time.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    open_requests: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "open_requests"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number, got {format_value(value)}", option=name)


class Bucket:
    """A token bucket: it holds a minute's worth at most, fills evenly, and may be overdrawn by what is known later."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = max(1.0, per_minute)
        self._rate = per_minute / MINUTE
        self._level = self._size
        self._at = now

    def missing(self, amount: float, now: float) -> float:
        """Return the seconds until so much could be taken, 0 when it can be now; of too much for any time: a minute."""
        self._fill(now)
        lacking = min(amount, self._size) - self._level
        return 0.0 if lacking <= 0 else lacking / self._rate

    def take(self, amount: float, now: float) -> None:
        """Take so much, also what is not there; a negative amount is given back."""
        self._fill(now)
        self._level = min(self._size, self._level - amount)

    def resize(self, per_minute: float, now: float) -> None:
        """Hold another minute's worth from now on; what was taken stays taken."""
        self._fill(now)
        size = max(1.0, per_minute)
        self._level += size - self._size
        self._size, self._rate = size, per_minute / MINUTE

    def _fill(self, now: float) -> None:
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now


class _Use:
    """What one tenant uses."""

    def __init__(self, limits: TenantLimits, now: float) -> None:
        self.open = 0
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self._buckets: dict[str, Bucket] = {}
        self.renew(limits, now)

    def renew(self, limits: TenantLimits, now: float) -> None:
        """Hold to these limits from now on."""
        self.requests = self._bucket("requests", limits.requests_per_minute, now)
        self.tokens = self._bucket("tokens", limits.tokens_per_minute, now)

    def _bucket(self, name: str, per_minute: float | None, now: float) -> Bucket | None:
        """Return the bucket of a limit; one whose limit was taken away is kept, and is as empty when that is back."""
        if per_minute is None:
            return None
        if name in self._buckets:
            self._buckets[name].resize(per_minute, now)
        return self._buckets.setdefault(name, Bucket(per_minute, now))


class Share:
    """What one request may use of its tenant's share. Must be ended, once."""

    def __init__(self, use: _Use, limits: TenantLimits, clock: Clock) -> None:
        self._use = use
        self._limits = limits
        self._clock = clock
        self._reserved = 0

    def reserve(self, tokens: int) -> None:
        """Set so many tokens aside. Raises RateLimited when they are not there."""
        bucket, now = self._use.tokens, self._clock.now()
        if bucket is None:
            return
        if (seconds := bucket.missing(tokens, now)) > 0:
            raise _used_up("tokens", self._limits.tokens_per_minute, seconds)
        bucket.take(tokens, now)
        self._reserved += tokens

    def spare(self) -> None:
        """It is refused for what others do, so it does not count among the requests of this minute; end() follows."""
        if self._use.requests is not None:
            self._use.requests.take(-1, self._clock.now())

    def end(self, used: int) -> None:
        """The request is over, and has used so many tokens."""
        self._use.open -= 1
        if self._use.tokens is not None:
            self._use.tokens.take(used - self._reserved, self._clock.now())


def _used_up(what: str, limit: float | None, seconds: float) -> RateLimited:
    said = f"your {what} of this minute are used up, the limit is {limit or 0:g}"
    return RateLimited(said, retry_after=seconds)


class Tenants:
    """What every tenant uses, for as long as it matters. Belongs to one event loop."""

    def __init__(self, limits: TenantLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._uses: dict[str, _Use] = {}

    def renew(self, limits: TenantLimits) -> None:
        """Hold to other limits from now on; what was used of this minute stays used."""
        self._limits, now = limits, self._clock.now()
        for use in self._uses.values():
            use.renew(limits, now)

    def begin(self, tenant: str, tokens: int = 0) -> Share:
        """Count a request that may use so many tokens, as far as that is known. Raises RateLimited."""
        now, limits = self._clock.now(), self._limits
        use = self._use(tenant, now)
        if limits.open_requests is not None and use.open >= limits.open_requests:
            raise RateLimited(f"{use.open} of your requests are open, the limit is {limits.open_requests}")
        if use.requests is not None and (seconds := use.requests.missing(1, now)) > 0:
            raise _used_up("requests", limits.requests_per_minute, seconds)
        share = Share(use, limits, self._clock)
        share.reserve(tokens)
        if use.requests is not None:
            use.requests.take(1, now)
        use.open += 1
        return share

    def _use(self, tenant: str, now: float) -> _Use:
        if tenant not in self._uses:
            if len(self._uses) >= MAX_TENANTS:
                self._uses = {name: use for name, use in self._uses.items() if use.open}
            self._uses[tenant] = _Use(self._limits, now)
        return self._uses[tenant]
