"""Limits: how many may wait, and for how long; what a tenant may use of a minute.

The line's length is known to the door itself: a request waits from the moment it is admitted until the engine's first
news of it. How fast the line moves is measured while there is one.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError, Overloaded, RateLimited

PACE_STARTS = 128
"""Starts over which the pace of the line is measured."""

LEAST_STARTS = 8
"""Below that nothing is known of the pace."""

MAX_TENANTS = 10_000
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds of the line in front of the engine.

    Attributes:
        waiting_requests: that wait for their first token.
        waiting_tokens: of their prompts together.
        wait_seconds: that somebody may be expected to wait; longer is refused at once.
        short_line: requests that may wait whatever time that takes: few people at a slow model wait rather than being
            sent away, while a line of hundreds would take long to become normal again.
    """

    waiting_requests: int = 1024
    waiting_tokens: int = 1_000_000
    wait_seconds: float = 3.0
    short_line: int = 16

    def __post_init__(self) -> None:
        for name in ("waiting_requests", "waiting_tokens", "wait_seconds", "short_line"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {_shown(getattr(self, name))}", option=name)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]


class Pace:
    """How many requests a second come out of the line, measured over the time in which there was one.

    What is known fades with every line that ends: where one alone may wait nothing new is measured.
    """

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=PACE_STARTS)
        self._last: float | None = None

    def started(self, now: float, *, is_line: bool) -> None:
        """One came out at this time; `is_line` says whether others waited behind it."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if not is_line:
            self.emptied()

    def emptied(self) -> None:
        """Nobody waits any more; the time until somebody does is no pace."""
        self._last = None
        if self._gaps:
            self._gaps.popleft()

    @property
    def rate(self) -> float | None:
        """Requests a second; None while too few are known."""
        if len(self._gaps) < LEAST_STARTS:
            return None
        total = sum(self._gaps)
        return len(self._gaps) / total if total > 0 else math.inf


class Permit:
    """The right of one request to be here; given back exactly once, however often end() is called."""

    def __init__(self, line: "Admission", tokens: int, spent: Callable[[int], None] | None) -> None:
        self._line = line
        self._tokens = tokens
        self._spent = spent
        self._waits = True
        self._is_over = False

    def started(self) -> None:
        """The engine has begun with it: it does not wait any more."""
        if self._waits:
            self._waits = False
            self._line.leave(self._tokens, has_started=True)

    def weigh(self, tokens: int) -> None:
        """Its prompt has so many tokens, as is known now. Raises Overloaded when there is no room for them."""
        if self._waits:
            self._line.weigh(self._tokens, tokens)
            self._tokens = tokens

    def end(self, used_tokens: int = 0) -> None:
        """The request is over, having used so many tokens."""
        if self._is_over:
            return
        self._is_over = True
        if self._waits:
            self._waits = False
            self._line.leave(self._tokens, has_started=False)
        self._line.open_requests -= 1
        if self._spent is not None:
            self._spent(used_tokens)


class Admission:
    """The line before the engine, counted. Belongs to one event loop.

    Attributes:
        waiting_requests: admitted, and the engine has said nothing of them yet.
        waiting_tokens: of their prompts.
        open_requests: admitted and not over.
    """

    def __init__(self, limits: AdmissionLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._pace = Pace()
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.open_requests = 0

    def renew(self, limits: AdmissionLimits) -> None:
        """Hold to other limits from now on; who is in line stays there."""
        self._limits = limits

    def admit(
        self, tokens: int, *, timeout: float | None = None, spent: Callable[[int], None] | None = None
    ) -> Permit:  # fmt: skip
        """Let a request with a prompt of so many tokens in; whoever gets the permit must end it.

        `spent` hears at the end what was used. Raises what check does.
        """
        self.check(tokens, timeout=timeout)
        self.waiting_requests += 1
        self.waiting_tokens += tokens
        self.open_requests += 1
        return Permit(self, tokens, spent)

    def check(self, tokens: int = 0, *, timeout: float | None = None) -> None:
        """Raise Overloaded where a request with a prompt of so many tokens would not be let in.

        An empty line takes everybody. A full one does not, and neither does one in which the wait is expected to be
        longer than the request's own timeout or, where it is no short one, than the limit.
        """
        if not self.waiting_requests:
            return
        limits, wait = self._limits, self.expected_wait
        if self.waiting_requests >= limits.waiting_requests:
            raise self._refused(f"{self.waiting_requests} requests wait, the limit is {limits.waiting_requests}", wait)
        if self.waiting_tokens + tokens > limits.waiting_tokens:
            waiting = f"{self.waiting_tokens} prompt tokens wait and {tokens} came"
            raise self._refused(f"{waiting}, the limit is {limits.waiting_tokens}", wait)
        longest = math.inf if self.waiting_requests < limits.short_line else limits.wait_seconds
        longest = longest if timeout is None else min(longest, timeout)
        if wait > longest:
            raise self._refused(f"the wait is about {wait:.1f} s, it may be {longest:g} s", wait - longest)

    @property
    def expected_wait(self) -> float:
        """Seconds that who comes now waits for the first token of all who are before it; 0 while nothing is known."""
        rate = self._pace.rate
        return self.waiting_requests / rate if rate else 0.0

    def weigh(self, before: int, tokens: int) -> None:
        """Count other tokens for one who waits; permits call it. Raises Overloaded, and then nothing has changed."""
        others, limit = self.waiting_tokens - before, self._limits.waiting_tokens
        if self.waiting_requests > 1 and others + tokens > limit:
            said = f"{others} prompt tokens wait and {tokens} came, the limit is {limit}"
            raise self._refused(said, self.expected_wait)
        self.waiting_tokens = others + tokens

    def leave(self, tokens: int, *, has_started: bool) -> None:
        """Count one out of the line; permits call it."""
        self.waiting_requests -= 1
        self.waiting_tokens -= tokens
        if has_started:
            self._pace.started(self._clock.now(), is_line=self.waiting_requests > 0)
        elif not self.waiting_requests:
            self._pace.emptied()

    def _refused(self, why: str, after: float) -> Overloaded:
        return Overloaded(f"too much is asked at once: {why}", retry_after=min(max(after, 1.0), MINUTE))


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
                raise ConfigError(f"{name} must be a positive number, got {_shown(value)}", option=name)


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
        self.renew(limits, now)

    def renew(self, limits: TenantLimits, now: float) -> None:
        """Hold to these limits from now on."""
        self.requests = _resized(self.requests, limits.requests_per_minute, now)
        self.tokens = _resized(self.tokens, limits.tokens_per_minute, now)


def _resized(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.resize(per_minute, now)
    return bucket


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
