"""SharedTenantLimiter: a tenant's limits over all routers, checked in this router first."""

from dataclasses import replace

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import RateLimited
from chairlift.router.shared_state.base import (
    ChargeOutcome,
    ChargeReply,
    TenantCharge,
    TenantSnapshot,
    TenantUsageTable,
)
from chairlift.web.tenant_limits import TenantLimits
from chairlift.web.tenant_rate_limiter import (
    MAX_TENANTS,
    TenantRateLimiter,
    TenantReservation,
    TenantUsage,
    minute_used_up,
    too_many_open,
)
from chairlift.web.token_bucket import TokenBucket


class SharedTenantLimiter:
    """Tracks and limits the usage of every tenant, as TenantRateLimiter does, over all routers.

    A request that exceeds the limits in this router alone is rejected without a call. While the table is unavailable
    the router's own limits hold, and their usage is charged to the table afterwards. Belongs to one event loop.
    """

    def __init__(self, limits: TenantLimits, table: TenantUsageTable | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._local = TenantRateLimiter(limits, self._clock)
        self._table = table
        self._unshared: dict[str, TenantUsage] = {}
        self._reconciled: set[str] = set()
        self._epoch = 0
        if table is not None:
            table.add_source(lambda: list(self._local.usages), self._reconcile)

    @property
    def limits(self) -> TenantLimits:
        """The limits of each tenant."""
        return self._local.limits

    def renew(self, limits: TenantLimits) -> None:
        """Apply other limits from now on; this minute's usage stays."""
        if limits == TenantLimits():
            self._reconciled.clear()  # what happens without limits is reported when there are limits again
        self._local.renew(limits)
        for usage in self._unshared.values():
            usage.renew(limits, self._clock.now())

    async def begin(self, tenant: str, tokens: int = 0) -> "SharedTenantReservation":
        """Start a request and reserve `tokens`, as far as they are known. Raises RateLimited."""
        self._reconcile(tenant)
        local = self._local.begin(tenant, tokens)
        reservation = SharedTenantReservation(self, tenant, local)
        charge = TenantCharge(requests=1, tokens=tokens, open=1)
        try:
            await self.charge(tenant, charge)
        except BaseException:
            local.refund_request()
            local.end(0)
            raise
        return reservation

    async def charge(self, tenant: str, charge: TenantCharge) -> None:
        """Take amounts that this router has room for. Raises RateLimited when the routers together have not."""
        if self._shares:
            assert self._table is not None
            reply = await self._table.charge(tenant, self.limits, charge)
            if reply.outcome is ChargeOutcome.TAKEN:
                return
            if reply.outcome is not ChargeOutcome.UNAVAILABLE:
                raise _rejection(reply, self.limits)
            if self._shares and self._epoch == self._table.epoch and tenant in self._reconciled:
                # the table came back meanwhile; the snapshot that it got has the open request already
                self._table.apply(tenant, self.limits, replace(charge, open=0))
                return
        self._keep_unshared(tenant, charge)

    def apply(self, tenant: str, charge: TenantCharge) -> None:
        """Take or return amounts in any case."""
        if self._shares:
            assert self._table is not None
            self._table.apply(tenant, self.limits, charge)
        else:
            self._keep_unshared(tenant, charge)

    def prepare(self, tenant: str) -> None:
        """Report the tenant's usage if the table does not know it, before a charge changes it."""
        self._reconcile(tenant)

    @property
    def _shares(self) -> bool:
        """Whether the table takes charges at the moment; without a limit it has nothing to count."""
        return self._table is not None and self._table.epoch != 0 and self.limits != TenantLimits()

    def _reconcile(self, tenant: str) -> None:
        if not self._shares:
            return
        assert self._table is not None
        if self._epoch != self._table.epoch:
            self._epoch = self._table.epoch
            self._reconciled.clear()
        if len(self._reconciled) >= 2 * MAX_TENANTS:
            # a tenant with an open request stays: a second snapshot would count its charges twice
            self._reconciled &= self._local.usages.keys()
        if tenant in self._reconciled:
            return
        self._reconciled.add(tenant)
        usage, unshared, now = self._local.usages.get(tenant), self._unshared.pop(tenant, None), self._clock.now()
        if usage is None:
            return
        snapshot = TenantSnapshot(
            open=usage.open,
            requests_in_use=_in_use(usage.requests, now),
            tokens_in_use=_in_use(usage.tokens, now),
            unshared_requests=_in_use(unshared.requests, now) if unshared is not None else 0.0,
            unshared_tokens=_in_use(unshared.tokens, now) if unshared is not None else 0.0,
        )
        if snapshot != TenantSnapshot():
            self._table.reconcile(tenant, self.limits, snapshot)

    def _keep_unshared(self, tenant: str, charge: TenantCharge) -> None:
        """Remember amounts that were not charged to the table; a reconciliation reports them."""
        if self._table is None or self.limits == TenantLimits():
            return
        now = self._clock.now()
        if tenant not in self._unshared:
            if len(self._unshared) >= MAX_TENANTS:
                self._unshared.pop(next(iter(self._unshared)))
            self._unshared[tenant] = TenantUsage(self.limits, now)
        usage = self._unshared[tenant]
        if usage.requests is not None:
            usage.requests.take(charge.requests, now)
        if usage.tokens is not None:
            usage.tokens.take(charge.tokens, now)


class SharedTenantReservation:
    """Tokens that one request has reserved of its tenant's limit. Must be ended, once."""

    def __init__(self, limiter: SharedTenantLimiter, tenant: str, local: TenantReservation) -> None:
        self._limiter, self._tenant, self._local = limiter, tenant, local

    async def reserve(self, tokens: int) -> None:
        """Reserve tokens. Raises RateLimited when the tenant has too few left."""
        self._limiter.prepare(self._tenant)
        self._local.reserve(tokens)
        if self._limiter.limits.tenant_tokens_per_minute is None:
            return
        try:
            await self._limiter.charge(self._tenant, TenantCharge(tokens=tokens))
        except BaseException:
            self._local.release(tokens)
            raise

    def refund_request(self) -> None:
        """Refund the request: it was rejected because of other requests' load. end() follows."""
        self._limiter.prepare(self._tenant)
        self._local.refund_request()
        self._limiter.apply(self._tenant, TenantCharge(requests=-1))

    def end(self, used: int) -> None:
        """End the request, which has used `used` tokens."""
        self._limiter.prepare(self._tenant)
        reserved = self._local.reserved_tokens
        self._local.end(used)
        self._limiter.apply(self._tenant, TenantCharge(tokens=used - reserved, open=-1))


def _in_use(bucket: TokenBucket | None, now: float) -> float:
    return 0.0 if bucket is None else bucket.in_use(now)


def _rejection(reply: ChargeReply, limits: TenantLimits) -> RateLimited:
    if reply.outcome is ChargeOutcome.OPEN_LIMIT:
        return too_many_open(int(reply.value), limits.tenant_max_open_requests)
    if reply.outcome is ChargeOutcome.REQUESTS_LIMIT:
        return minute_used_up("requests", limits.tenant_requests_per_minute, reply.value)
    return minute_used_up("tokens", limits.tenant_tokens_per_minute, reply.value)
