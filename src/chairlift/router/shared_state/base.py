"""SharedState: what several routers know together; its parts, and what passes through them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from chairlift.web.tenant_limits import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCharge:
    """Amounts that a tenant's request takes; negative amounts return some.

    Attributes:
        requests: requests of the minute.
        tokens: tokens of the minute.
        open: open requests.
    """

    requests: int = 0
    tokens: int = 0
    open: int = 0

    def negated(self) -> "TenantCharge":
        """Return the charge that undoes this one."""
        return TenantCharge(requests=-self.requests, tokens=-self.tokens, open=-self.open)


class ChargeOutcome(StrEnum):
    """How a charge ended: taken, above one of the limits, or not decided because the shared state is unavailable."""

    TAKEN = "taken"
    OPEN_LIMIT = "open_limit"
    REQUESTS_LIMIT = "requests_limit"
    TOKENS_LIMIT = "tokens_limit"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class ChargeReply:
    """Reply to a charge.

    Attributes:
        outcome: whether the amounts were taken; if not, nothing was.
        value: open requests of all routers (OPEN_LIMIT), or seconds until the amounts can be taken.
    """

    outcome: ChargeOutcome
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSnapshot:
    """What one router knows of a tenant when it joins the shared state, or joins it again.

    Attributes:
        open: requests of the tenant that this router has open.
        requests_in_use: requests of this minute, as this router alone has counted them.
        tokens_in_use: tokens of this minute, as this router alone has counted them.
        unshared_requests: the part of `requests_in_use` that was never charged to the table.
        unshared_tokens: the part of `tokens_in_use` that was never charged to the table.
    """

    open: int = 0
    requests_in_use: float = 0.0
    tokens_in_use: float = 0.0
    unshared_requests: float = 0.0
    unshared_tokens: float = 0.0


class TenantUsageTable(Protocol):
    """Usage of each tenant, summed over all routers.

    The calls of one router arrive in their order. A new `epoch` begins with each connection: all open requests of the
    router are then unknown to the table until `reconcile` reports them. UNAVAILABLE ends the epoch.
    """

    @property
    def epoch(self) -> int:
        """Number of the connection, from 1; 0 while the table is unavailable."""
        ...

    async def charge(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> ChargeReply:
        """Take the amounts if every limit permits it, all or none; a cancelled call takes nothing in the end."""
        ...

    def apply(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> None:
        """Take or return the amounts in any case; lost if the table is unavailable."""
        ...

    def reconcile(self, tenant: str, limits: TenantLimits, snapshot: TenantSnapshot) -> None:
        """Report what this router knows of a tenant, before the tenant's first charge of an epoch."""
        ...

    def add_source(self, tenants: Callable[[], Iterable[str]], reconcile: Callable[[str], None]) -> None:
        """Call `reconcile` for each of `tenants()`, a few at a time, after each new connection."""
        ...


class SessionTable(Protocol):
    """The replica of each session. A session that is not used expires; the least recently used go first."""

    async def get(self, key: str) -> str | None:
        """Return the id of a session's replica, None for a session without one; counts as a use."""
        ...

    async def assign(self, key: str, replica_id: str, *, replacing: str | None = None) -> str:
        """Set a session's replica if it has none, or has `replacing`; return the one that it has now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEjection:
    """A replica that another router has ejected.

    Attributes:
        router_id: the router that ejected it.
        replica_id: the replica's URL.
        until: monotonic seconds of this router's clock at which the ejection ends.
        reason: why it was ejected.
    """

    router_id: str
    replica_id: str
    until: float
    reason: str


EjectionListener = Callable[[SharedEjection], None]
"""Is called for each new ejection by another router; `until` has passed when the router took the replica back."""


class EjectionTable(Protocol):
    """Ejections of replicas by this router and by the others. The calls return at once."""

    def eject(self, replica_id: str, seconds: float, reason: str) -> None:
        """Tell the other routers that this one ejected a replica for some seconds."""
        ...

    def restore(self, replica_id: str) -> None:
        """Tell the other routers that this one uses a replica again, before its ejection ends."""
        ...

    def of_other_routers(self, now: float) -> Mapping[str, SharedEjection]:
        """Return the replicas that other routers have ejected; of several ejections the one that ends last."""
        ...

    def add_listener(self, listener: EjectionListener) -> None:
        """Call `listener` on the event loop for each change by another router."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateStatus:
    """Whether the state is shared at the moment.

    Attributes:
        backend: "local" or "redis".
        address: host and port of the server, without user and password; "" for local.
        is_connected: whether limits, sessions and ejections are shared; always true for local.
        num_outages: how often the server became unavailable.
        outage_seconds: seconds since it became unavailable, 0 while connected.
        error: why it is unavailable; "" while connected.
    """

    backend: str
    address: str = ""
    is_connected: bool = True
    num_outages: int = 0
    outage_seconds: float = 0.0
    error: str = ""


class SharedState(Protocol):
    """State that several routers share. Belongs to one event loop; an unavailable server fails no call."""

    @property
    def tenant_usage(self) -> TenantUsageTable | None:
        """Usage of the tenants over all routers; None if this router is alone."""
        ...

    @property
    def sessions(self) -> SessionTable:
        """The replica of each session."""
        ...

    @property
    def ejections(self) -> EjectionTable:
        """Replicas that the routers have ejected."""
        ...

    async def start(self) -> None:
        """Connect; returns after a bounded time, also when the server cannot be reached."""
        ...

    async def close(self) -> None:
        """Leave: this router's open requests no longer count."""
        ...

    def status(self) -> SharedStateStatus:
        """Return whether the state is shared at the moment."""
        ...
