"""RedisConnection: runs Lua scripts in the order of the calls, each within a bounded time, and reconnects on its own.

connected: calls are sent in batches ──a late reply, an error, a lost lease──> unavailable: calls end at once
    ^                                                                               │
    └──────── a new epoch, with a new lease, after a connection in the background <─┘
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError
from chairlift.router.shared_state import redis_scripts
from chairlift.router.shared_state.base import SharedStateStatus
from chairlift.router.shared_state.redis_url import RedisTarget
from chairlift.router.shared_state.task_cancellation import cancel_and_wait

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

MAX_BATCH_CALLS = 64
"""Number of calls in one round trip; later calls wait for the next one."""

MAX_QUEUED_CALLS = 4096
"""Number of calls that wait to be sent; at more, Redis counts as unavailable."""

CONNECT_SECONDS = 2.0
"""Seconds that a connection attempt may take. No request waits for it."""

SENTINEL_SECONDS = 0.5
"""Seconds that one Sentinel may take to name the master."""

Reply = list[str]
"""Outcome and values of a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTiming:
    """Times of a connection.

    Attributes:
        call_seconds: seconds that a round trip may take; after them Redis counts as unavailable.
        retry_seconds: seconds from an error to the next connection attempt.
        lease_seconds: seconds after which the open requests of a router that crashed no longer count.
        renew_seconds: seconds between two renewals of the lease, which also read the ejections of other routers.
    """

    call_seconds: float = 0.05
    retry_seconds: float = 1.0
    lease_seconds: float = 10.0
    renew_seconds: float = 0.9


@dataclass(slots=True, eq=False)
class _ScriptCall:
    script: str
    keys: Sequence[str]
    arguments: Sequence[str]
    reply: "asyncio.Future[Reply | None]"


class RedisConnection:
    """A connection that carries the calls of one router. Belongs to one event loop.

    Attributes:
        prefix: beginning of all keys, which belong to one fleet.
        epoch: number of the connection, from 1; 0 while Redis is unavailable.
        owner: name of this router's lease in this epoch.
        has_lost_data: whether Redis lost its data between the former epoch and this one.
    """

    def __init__(
        self, target: RedisTarget, *, prefix: str = "chairlift", timing: RedisTiming | None = None,
        ca_file: str = "", clock: Clock | None = None,
    ) -> None:  # fmt: skip
        _require_redis()
        self.prefix = prefix
        self.router_id = secrets.token_hex(8)
        self.epoch = 0
        self.owner = ""
        self.has_lost_data = False
        self._generation = ""
        self._passwords: tuple[str, str] = ("", "")
        self._target, self._ca_file = target, ca_file
        self._timing, self._clock = timing or RedisTiming(), clock or SystemClock()
        self._queue: deque[_ScriptCall] = deque()
        self._wakeup = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._on_renewal: Callable[[Reply], None] = lambda reply: None
        self._num_epochs = 0
        self._num_attempts = 0
        self._num_outages = 0
        self._unavailable_since = self._clock.now()
        self._error = "not connected yet"
        self._is_reported = False
        self._task: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._was_tried = asyncio.Event()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the start of each epoch; its calls are sent before all others."""
        self._listeners.append(listener)

    def set_renewal_listener(self, listener: Callable[[Reply], None]) -> None:
        """Call `listener` with the ejections that each renewal of the lease reads."""
        self._on_renewal = listener

    async def start(self) -> None:
        """Connect in the background; returns after the first attempt."""
        self._task = asyncio.create_task(self._run())
        await self._was_tried.wait()

    async def close(self) -> None:
        """End the lease and the connection."""
        if self.epoch:
            await self.call(redis_scripts.END_LEASE, [self.key("leases")], [self.owner])
        self._is_reported = True  # the end of the connection is not an outage
        if self._task is not None:
            await cancel_and_wait(self._task)

    def key(self, name: str) -> str:
        """Return the full name of a key."""
        return f"{self.prefix}:{name}"

    @property
    def db(self) -> int:
        """Number of the database."""
        return self._target.db

    def status(self) -> SharedStateStatus:
        """Return whether Redis is connected, and why not."""
        return SharedStateStatus(
            backend="redis",
            address=self._target.address,
            is_connected=self.epoch != 0,
            num_outages=self._num_outages,
            outage_seconds=0.0 if self.epoch else self._clock.now() - self._unavailable_since,
            error="" if self.epoch else self._error,
        )

    def send(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> "asyncio.Future[Reply | None]":
        """Queue a call; the future's result is the reply, or None if Redis is unavailable."""
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        if self.epoch and len(self._queue) >= MAX_QUEUED_CALLS:
            self._break(f"{len(self._queue)} calls wait to be sent, the limit is {MAX_QUEUED_CALLS}")
        if not self.epoch:
            reply.set_result(None)
            return reply
        self._queue.append(_ScriptCall(script, keys, arguments, reply))
        self._wakeup.set()
        return reply

    async def wait(self, reply: "asyncio.Future[Reply | None]") -> Reply | None:
        """Return a queued call's reply, or None if Redis is or becomes unavailable; a late reply makes it so."""
        if not reply.done():
            await asyncio.wait({reply})  # a cancelled request leaves the call in its place
        return reply.result()

    async def flush(self) -> None:
        """Wait until the calls that are queued now have their replies."""
        if self._queue:
            await self.wait(self._queue[-1].reply)

    async def call(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> Reply | None:
        """Run a script; returns its reply, or None if Redis is unavailable."""
        return await self.wait(self.send(script, keys, arguments))

    async def open_client(self) -> "Redis":
        """Return a client of the server, which is the master that the Sentinels name; it is not connected yet."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        from chairlift.router.shared_state.sentinel import find_master

        password, sentinel_password = self._target.read_password(), self._target.read_sentinel_password()
        self._passwords = password, sentinel_password
        options: dict[str, Any] = {"socket_timeout": None, "socket_keepalive": True}
        options["socket_connect_timeout"] = CONNECT_SECONDS / 2
        if self._target.has_tls:
            options |= {"ssl": True, "ssl_ca_certs": self._ca_file or None}
        host, port = self._target.hosts[0]
        if self._target.master_name:
            self._num_attempts += 1
            first = self._num_attempts % len(self._target.hosts)  # another Sentinel each time: the first may be stuck
            hosts = [*self._target.hosts[first:], *self._target.hosts[:first]]
            limits = {"socket_connect_timeout": SENTINEL_SECONDS, "socket_timeout": SENTINEL_SECONDS}
            sentinel_options = options | limits | {"retry": Retry(NoBackoff(), 0)}
            sentinel_options["password"] = sentinel_password or None
            host, port = await find_master(hosts, self._target.master_name, sentinel_options)
        return Redis(
            host=host,
            port=port,
            db=self._target.db,
            username=self._target.username or None,
            password=password or None,
            decode_responses=True,
            encoding_errors="backslashreplace",
            retry=Retry(NoBackoff(), 0),
            **options,
        )

    async def _run(self) -> None:
        """Connect and serve calls, for ever."""
        while True:
            client: Redis | None = None
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    client = await self.open_client()
                    await self._begin_epoch(client)
                self._was_tried.set()
                self._serving = asyncio.create_task(self._serve(client))
                await asyncio.wait({self._serving})
                if not self._serving.cancelled() and (error := self._serving.exception()) is not None:
                    raise error
            except asyncio.CancelledError:
                self._end_epoch("closed")
                raise
            except Exception as error:  # whatever the library raises: the router goes on
                self._end_epoch(self._text_of(error))
            finally:
                if self._serving is not None:
                    self._serving.cancel()
                if client is not None:
                    await _close(client)
            self._was_tried.set()
            await asyncio.sleep(self._timing.retry_seconds)

    async def _begin_epoch(self, client: "Redis") -> None:
        """Load the scripts, take a lease and start the epoch. Raises what the client raises."""
        for script in redis_scripts.SCRIPTS:
            await client.script_load(script)
        owner = f"{self.router_id}.{self._num_epochs + 1}"
        former = f"{self.router_id}.{self._num_epochs}" if self._num_epochs else ""
        lease = f"{self._timing.lease_seconds:g}"
        keys, generation = self._renewal_keys(), secrets.token_hex(8)
        renewal = await client.evalsha(
            _digest(redis_scripts.RENEW_LEASE), len(keys), *keys, owner, lease, "1", former, generation
        )
        self.has_lost_data = self._generation not in {"", renewal[1]}
        self._generation = renewal[1]
        self._num_epochs += 1
        self.epoch, self.owner = self._num_epochs, owner
        if self._is_reported:
            seconds = self._clock.now() - self._unavailable_since
            log.warning(
                "shared state: Redis at %s is available again after %.1f s; limits are shared again",
                self._target.address, seconds,
            )  # fmt: skip
        self._is_reported = False
        for listener in self._listeners:
            listener()
        self._on_renewal(renewal)

    async def _serve(self, client: "Redis") -> None:
        """Send the queued calls in batches and renew the lease. Raises the error that ends the connection."""
        renew_at = self._clock.now() + self._timing.renew_seconds
        while True:
            if not self._queue:
                self._wakeup.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakeup.wait(), max(0.001, renew_at - self._clock.now()))
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH_CALLS))]
            if self._clock.now() >= renew_at:
                renew_at = self._clock.now() + self._timing.renew_seconds
                batch.append(self._renewal())
            if batch:
                await self._send_batch(client, batch)

    def _renewal(self) -> _ScriptCall:
        arguments = [self.owner, f"{self._timing.lease_seconds:g}", "0", "", self._generation]
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(self._report_renewal)
        return _ScriptCall(redis_scripts.RENEW_LEASE, self._renewal_keys(), arguments, reply)

    def _renewal_keys(self) -> list[str]:
        return [self.key("leases"), self.key("ejections"), self.key("generation")]

    def _report_renewal(self, reply: "asyncio.Future[Reply | None]") -> None:
        if not reply.cancelled() and (values := reply.result()) is not None:
            self._on_renewal(values)

    async def _send_batch(self, client: "Redis", batch: Sequence[_ScriptCall]) -> None:
        """Run the calls in one round trip. Raises the first error, then no call of the batch has a reply."""
        try:
            pipeline = client.pipeline(transaction=False)
            for call in batch:
                pipeline.evalsha(_digest(call.script), len(call.keys), *call.keys, *call.arguments)
            replies = await self._within_limit(pipeline.execute(raise_on_error=True))
            if any(reply[0] == redis_scripts.LEASE_LOST for reply in replies):
                raise _LeaseLost("the lease of this router ended")
        except BaseException:
            for call in batch:
                if not call.reply.done():
                    call.reply.set_result(None)
            raise
        for call, reply in zip(batch, replies, strict=True):
            if not call.reply.done():
                call.reply.set_result(reply)

    async def _within_limit(self, round_trip: Awaitable[list[Reply]]) -> list[Reply]:
        """Return the replies of a round trip. Raises TimeoutError if Redis takes too long."""
        loop, seconds = asyncio.get_running_loop(), self._timing.call_seconds
        task = asyncio.ensure_future(round_trip)
        try:
            while not task.done():
                started_at = loop.time()
                await asyncio.wait({task}, timeout=seconds)
                if not task.done() and loop.time() - started_at < 2 * seconds:
                    raise TimeoutError(f"no reply within {seconds * 1000:g} ms")
                # after a longer time the event loop itself was busy, and the replies may have arrived
            return await task
        finally:
            task.cancel()

    def _text_of(self, error: BaseException) -> str:
        """Return the message of an error without the passwords, which some versions of the library put there."""
        text = " ".join(str(error).split())
        for password in filter(None, self._passwords):
            text = text.replace(password, "***")
        return text or ("no reply in time" if isinstance(error, TimeoutError) else type(error).__name__)

    def _break(self, error: str) -> None:
        """End the epoch now: the queued calls have no reply."""
        self._end_epoch(error)
        if self._serving is not None:
            self._serving.cancel()

    def _end_epoch(self, error: str) -> None:
        """End the epoch, if there is one, and report an outage once."""
        self._error = error
        if self.epoch:
            self._num_outages += 1
            self._unavailable_since = self._clock.now()
        self.epoch, self.owner = 0, ""
        while self._queue:
            call = self._queue.popleft()
            if not call.reply.done():
                call.reply.set_result(None)
        if not self._is_reported:
            self._is_reported = True
            log.warning(
                "shared state: Redis at %s is unavailable (%s); this router goes on with its own limits and tries to "
                "connect every %g s", self._target.address, error, self._timing.retry_seconds,
            )  # fmt: skip


class _LeaseLost(Exception):
    """The lease of the epoch ended, because this process or Redis stood still for too long."""


def _require_redis() -> None:
    """Raise ConfigError if the library is not installed."""
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:
        raise ConfigError(
            "shared_state needs the library redis: pip install 'chairlift[redis]'", option="shared_state"
        ) from None


def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


async def _close(client: "Redis") -> None:
    with suppress(Exception):
        async with asyncio.timeout(1):
            await client.aclose()
