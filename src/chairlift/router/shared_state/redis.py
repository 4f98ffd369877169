"""RedisSharedState: tenants' usage, sessions and ejections in Redis, over one ordered connection."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256

from chairlift.core.clock import Clock, SystemClock
from chairlift.router.shared_state import redis_scripts
from chairlift.router.shared_state.base import (
    ChargeOutcome,
    ChargeReply,
    EjectionListener,
    SharedEjection,
    SharedStateStatus,
    TenantCharge,
    TenantSnapshot,
)
from chairlift.router.shared_state.local import LocalSessionTable
from chairlift.router.shared_state.redis_connection import RedisConnection, RedisTiming, Reply
from chairlift.router.shared_state.redis_url import RedisTarget
from chairlift.router.shared_state.task_cancellation import cancel_and_wait
from chairlift.web.tenant_limits import TenantLimits

RECONCILED_AT_ONCE = 64
"""Number of tenants that are reported in a row after a new connection; requests are served in between."""

SUBSCRIBE_RETRY_SECONDS = 1.0
"""Seconds from a broken subscription to the next; meanwhile the renewals of the lease read the ejections."""


class RedisTenantUsage:
    """Usage of each tenant, summed over all routers, in Redis."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._sources: list[tuple[Callable[[], Iterable[str]], Callable[[str], None]]] = []
        self._sweep: asyncio.Task[None] | None = None
        connection.add_listener(self._start_sweep)

    @property
    def epoch(self) -> int:
        """Number of the connection, from 1; 0 while Redis is unavailable."""
        return self._connection.epoch

    async def charge(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> ChargeReply:
        """Take the amounts if every limit permits it, all or none; a cancelled call takes nothing in the end."""
        reply = self._send_charge(tenant, limits, charge, "check")
        try:
            return _charge_reply(await self._connection.wait(reply))
        except asyncio.CancelledError:

            def undo(done: "asyncio.Future[Reply | None]") -> None:
                if _charge_reply(done.result()).outcome is ChargeOutcome.TAKEN:
                    self.apply(tenant, limits, charge.negated())

            reply.add_done_callback(undo)
            raise

    def apply(self, tenant: str, limits: TenantLimits, charge: TenantCharge) -> None:
        """Take or return the amounts in any case; lost if Redis is unavailable."""
        self._send_charge(tenant, limits, charge, "apply")

    def reconcile(self, tenant: str, limits: TenantLimits, snapshot: TenantSnapshot) -> None:
        """Report what this router knows of a tenant, before the tenant's first charge of an epoch."""
        if self._connection.has_lost_data:  # nothing of this router's usage is in Redis
            snapshot = replace(
                snapshot, unshared_requests=snapshot.requests_in_use, unshared_tokens=snapshot.tokens_in_use
            )
        arguments = [
            self._connection.owner, _text(limits.tenant_requests_per_minute), _text(limits.tenant_tokens_per_minute),
            str(snapshot.open), repr(snapshot.unshared_requests), repr(snapshot.requests_in_use),
            repr(snapshot.unshared_tokens), repr(snapshot.tokens_in_use),
        ]  # fmt: skip
        self._connection.send(redis_scripts.RECONCILE, self._keys(tenant), arguments)

    def add_source(self, tenants: Callable[[], Iterable[str]], reconcile: Callable[[str], None]) -> None:
        """Call `reconcile` for each of `tenants()`, a few at a time, after each new connection."""
        self._sources.append((tenants, reconcile))

    def close(self) -> None:
        """Stop to report tenants."""
        if self._sweep is not None:
            self._sweep.cancel()

    def _send_charge(
        self, tenant: str, limits: TenantLimits, charge: TenantCharge, mode: str
    ) -> "asyncio.Future[Reply | None]":
        arguments = [
            self._connection.owner, mode, _text(limits.tenant_requests_per_minute),
            _text(limits.tenant_tokens_per_minute), _text(limits.tenant_max_open_requests),
            str(charge.requests), str(charge.tokens), str(charge.open),
        ]  # fmt: skip
        return self._connection.send(redis_scripts.CHARGE, self._keys(tenant), arguments)

    def _keys(self, tenant: str) -> list[str]:
        return [self._connection.key(f"tenant:{tenant}"), self._connection.key("leases")]

    def _start_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = asyncio.create_task(self._report_tenants(self._connection.epoch))

    async def _report_tenants(self, epoch: int) -> None:
        """Report every tenant, so that the other routers count the open requests of idle ones, too."""
        for tenants, reconcile in self._sources:
            for number, tenant in enumerate(list(tenants())):
                if number % RECONCILED_AT_ONCE == RECONCILED_AT_ONCE - 1:
                    await self._connection.flush()
                if self._connection.epoch != epoch:
                    return
                reconcile(tenant)


class RedisSessionTable:
    """The replica of each session, in Redis; a copy of this router's own sessions serves while it is unavailable.

    Redis holds a hash of each key, not the key: it may be a user's name.
    """

    def __init__(self, connection: RedisConnection, ttl_seconds: float, max_sessions: int, clock: Clock) -> None:
        self._connection = connection
        self._limits = [repr(float(ttl_seconds)), str(max_sessions)]
        self._local = LocalSessionTable(ttl_seconds, max_sessions, clock)

    async def get(self, key: str) -> str | None:
        """Return the id of a session's replica, None for a session without one; counts as a use."""
        reply = await self._connection.call(redis_scripts.GET_SESSION, self._keys(), [_digest(key), *self._limits])
        if reply is not None and reply[1]:
            self._local.put(key, reply[1])
            return reply[1]
        replica_id = await self._local.get(key)
        if reply is None or replica_id is None:
            return replica_id
        return await self.assign(key, replica_id)  # Redis was away, or has lost its data

    async def assign(self, key: str, replica_id: str, *, replacing: str | None = None) -> str:
        """Set a session's replica if it has none, or has `replacing`; return the one that it has now."""
        arguments = [_digest(key), *self._limits, replica_id, replacing or ""]
        reply = await self._connection.call(redis_scripts.ASSIGN_SESSION, self._keys(), arguments)
        if reply is None:
            return await self._local.assign(key, replica_id, replacing=replacing)
        self._local.put(key, reply[1])
        return reply[1]

    def _keys(self) -> list[str]:
        return [self._connection.key("sessions"), self._connection.key("session_times")]


class RedisEjectionTable:
    """Ejections in Redis: a message to each subscribed router, and a hash that routers read once a second."""

    def __init__(self, connection: RedisConnection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self._own: dict[str, tuple[float, str]] = {}
        self._others: dict[tuple[str, str], SharedEjection] = {}
        self._listeners: list[EjectionListener] = []
        self._subscription: asyncio.Task[None] | None = None
        connection.add_listener(self._join)
        connection.set_renewal_listener(self._read_all)

    def eject(self, replica_id: str, seconds: float, reason: str) -> None:
        """Tell the other routers that this one ejected a replica for some seconds."""
        now = self._clock.now()
        self._own = {name: each for name, each in self._own.items() if each[0] > now}
        self._own[replica_id] = now + seconds, reason
        self._publish(replica_id, seconds, reason)

    def restore(self, replica_id: str) -> None:
        """Tell the other routers that this one uses a replica again, before its ejection ends."""
        if self._own.pop(replica_id, None) is not None:
            self._publish(replica_id, 0.0, "")

    def of_other_routers(self, now: float) -> Mapping[str, SharedEjection]:
        """Return the replicas that other routers have ejected; of several ejections the one that ends last."""
        ejections = sorted((each for each in self._others.values() if each.until > now), key=lambda each: each.until)
        return {each.replica_id: each for each in ejections}

    def add_listener(self, listener: EjectionListener) -> None:
        """Call `listener` on the event loop for each change by another router."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Take this router's ejections back and end the subscription."""
        for replica_id in [*self._own]:
            self.restore(replica_id)
        if self._subscription is not None:
            await cancel_and_wait(self._subscription)

    @property
    def _channel(self) -> str:
        """Name of the channel; channels belong to no database, so it has the database's number."""
        return self._connection.key(f"{self._connection.db}:ejections")

    def _publish(self, replica_id: str, seconds: float, reason: str) -> None:
        message = json.dumps([self._connection.router_id, replica_id, seconds, reason])
        field_name = f"{self._connection.router_id} {replica_id}"
        arguments = [self._channel, message, field_name, repr(seconds), reason]
        self._connection.send(redis_scripts.EJECT, [self._connection.key("ejections")], arguments)

    def _join(self) -> None:
        """Publish this router's ejections again: Redis may have lost them, and the others may not have been there."""
        now = self._clock.now()
        for replica_id, (until, reason) in self._own.items():
            if until > now:
                self._publish(replica_id, until - now, reason)
        self._subscription = asyncio.create_task(self._subscribe(self._subscription))

    async def _subscribe(self, former: asyncio.Task[None] | None) -> None:
        """Listen to the other routers, for ever; `former` may listen to a server that is no longer the master."""
        if former is not None:
            await cancel_and_wait(former)
        while True:
            with suppress(Exception):  # renewals read the ejections in any case
                client = await self._connection.open_client()
                try:
                    pubsub = client.pubsub(ignore_subscribe_messages=True)
                    await pubsub.subscribe(self._channel)
                    async for message in pubsub.listen():
                        self._read_message(message["data"])
                finally:
                    await client.aclose()
            await asyncio.sleep(SUBSCRIBE_RETRY_SECONDS)

    def _read_message(self, data: str) -> None:
        with suppress(ValueError, TypeError):
            router_id, replica_id, seconds, reason = json.loads(data)
            self._change(str(router_id), str(replica_id), float(seconds), str(reason))

    def _read_all(self, reply: Reply) -> None:
        """Take over the ejections that a renewal has read; those that are missing were taken back."""
        present = set()
        for name, seconds, reason in zip(reply[2::3], reply[3::3], reply[4::3], strict=True):
            router_id, _, replica_id = name.partition(" ")
            present.add((router_id, replica_id))
            self._change(router_id, replica_id, float(seconds), reason)
        for router_id, replica_id in self._others.keys() - present:
            self._change(router_id, replica_id, 0.0, "")

    def _change(self, router_id: str, replica_id: str, seconds: float, reason: str) -> None:
        """Keep one ejection of another router and report a change; 0 seconds is its end."""
        if router_id == self._connection.router_id:
            return
        now, key = self._clock.now(), (router_id, replica_id)
        ejection = SharedEjection(router_id=router_id, replica_id=replica_id, until=now + seconds, reason=reason)
        former = self._others.pop(key, None)
        if seconds > 0:
            self._others[key] = ejection
        is_known = former is not None and abs(former.until - ejection.until) < 0.5
        if is_known or (former is None and seconds <= 0):
            return
        for listener in self._listeners:
            listener(ejection)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStateConfig:
    """Where the shared state is and how long it lasts.

    Attributes:
        target: the server, or its Sentinels.
        prefix: beginning of all keys; two fleets in one database need different ones.
        ca_file: PEM file of the authority that signed the server's certificate; "" for those of the system.
        session_ttl_seconds: seconds after which an unused session expires.
        max_sessions: number of sessions at most.
        timing: times of the connection.
    """

    target: RedisTarget
    prefix: str = "chairlift"
    ca_file: str = ""
    session_ttl_seconds: float = 3600.0
    max_sessions: int = 100_000
    timing: RedisTiming = field(default_factory=RedisTiming)


class RedisSharedState:
    """State that several routers share through Redis. Belongs to one event loop; no call fails because of Redis."""

    def __init__(self, config: RedisStateConfig, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._connection = RedisConnection(
            config.target, prefix=config.prefix, timing=config.timing, ca_file=config.ca_file, clock=clock
        )
        self.tenant_usage = RedisTenantUsage(self._connection)
        self.sessions = RedisSessionTable(self._connection, config.session_ttl_seconds, config.max_sessions, clock)
        self.ejections = RedisEjectionTable(self._connection, clock)

    async def start(self) -> None:
        """Connect; returns after a bounded time, also when Redis cannot be reached."""
        await self._connection.start()

    async def close(self) -> None:
        """Leave: this router's open requests and ejections no longer count."""
        await self.ejections.close()
        self.tenant_usage.close()
        await self._connection.close()

    def status(self) -> SharedStateStatus:
        """Return whether Redis is connected, and why not."""
        return self._connection.status()


def _charge_reply(reply: Reply | None) -> ChargeReply:
    if reply is None:
        return ChargeReply(ChargeOutcome.UNAVAILABLE)
    return ChargeReply(ChargeOutcome(reply[0]), float(reply[1]))


def _text(limit: float | None) -> str:
    """Return a limit as scripts read it; "" means no limit."""
    return "" if limit is None else repr(limit)


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
