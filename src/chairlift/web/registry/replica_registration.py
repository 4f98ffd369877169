"""ReplicaRegistration: keeps a replica registered while it serves, and removes it first thing in a drain.

register ──> registered ──> renewed every third of the lease ──> deregister
    └──<── backoff ──<── lease lost
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.backoff import Backoff
from chairlift.web.registry.replica_record import ReplicaRecord

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
DEREGISTER_SECONDS = 3.0
"""Seconds that a drain waits for the registry to remove the replica."""


class Registry(Protocol):
    """One replica's entry in a registry; every method raises DiscoveryFailed when the registry does not do it."""

    name: str
    """The registry, for messages."""

    lease_seconds: float
    """Seconds after which the registry removes a replica that is not renewed."""

    async def register(self, record: ReplicaRecord) -> None:
        """Add the replica with a new lease, in place of an earlier entry."""
        ...

    async def renew(self) -> bool:
        """Renew the lease for its whole time; return False if it has ended, so that the entry is gone."""
        ...

    async def deregister(self) -> None:
        """Remove the replica; without an entry this does nothing."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ReplicaRegistration:
    """The task that registers a replica.

    Attributes:
        is_registered: whether the registry has the replica, as far as this process knows.
    """

    def __init__(
        self, registry: Registry, make_record: Callable[[str], ReplicaRecord], *, rng: random.Random,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create the task; `make_record` returns the record of a server that listens at a URL."""
        self._registry, self._make_record = registry, make_record
        self._rng, self._clock = rng, SystemClock() if clock is None else clock
        self._task: asyncio.Task[None] | None = None
        self.is_registered = False

    def start(self, listen_url: str) -> None:
        """Register the server that listens at a URL, and keep it registered."""
        assert self._task is None, "the registration was already started"
        self._task = asyncio.create_task(self._run(self._make_record(listen_url)))

    async def stop(self) -> None:
        """Remove the replica from the registry, within DEREGISTER_SECONDS; a second call does nothing."""
        if (task := self._task) is None:
            return
        self._task = None
        task.cancel()
        await asyncio.wait([task])
        registry = self._registry
        try:
            async with asyncio.timeout(DEREGISTER_SECONDS):
                await registry.deregister()
            log.info("deregistered from %s", registry.name)
        except (DiscoveryFailed, TimeoutError) as error:
            reason = str(error) or f"no answer within {DEREGISTER_SECONDS:g} s"
            log.warning(
                "cannot deregister from %s, which removes this replica after %g s: %s",
                registry.name, registry.lease_seconds, reason,
            )  # fmt: skip
        finally:
            self.is_registered = False
            await registry.close()

    async def _run(self, record: ReplicaRecord) -> None:
        backoff = Backoff(self._rng)
        while True:
            try:
                await self._register_and_renew(record, backoff)
            except DiscoveryFailed as error:
                log.warning("cannot register at %s: %s", self._registry.name, error)
            except Exception:
                log.exception("cannot register at %s: internal error", self._registry.name)
            self.is_registered = False
            await asyncio.sleep(backoff.next_delay())

    async def _register_and_renew(self, record: ReplicaRecord, backoff: Backoff) -> None:
        """Register the replica and renew it until its lease is lost. Raises DiscoveryFailed if it cannot register."""
        registry, renewed_at = self._registry, self._clock.now()
        await registry.register(record)
        self.is_registered = True
        backoff.reset()
        log.info("registered %s at %s", record.url, registry.name)
        renew_seconds = registry.lease_seconds / RENEWALS_PER_LEASE
        delay = renew_seconds * self._rng.uniform(0.8, 1.0)
        retry = Backoff(self._rng, max_seconds=max(0.2, renew_seconds))
        while True:
            await asyncio.sleep(delay)
            asked_at = self._clock.now()
            try:
                if not await registry.renew():
                    reason = "the registry does not have it any more"
                    break
                renewed_at, delay = asked_at, renew_seconds * self._rng.uniform(0.8, 1.0)
                retry.reset()
            except DiscoveryFailed as error:
                if self._clock.now() - renewed_at >= registry.lease_seconds:
                    reason = f"it was not renewed within {registry.lease_seconds:g} s: {error}"
                    break
                log.warning("cannot renew the registration at %s: %s", registry.name, error)
                delay = retry.next_delay()
        log.warning("the registration at %s is lost, this replica registers again: %s", registry.name, reason)
