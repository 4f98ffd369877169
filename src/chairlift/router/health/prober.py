"""ReplicaProber: probes every replica of a set in its own asyncio task."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

import aiohttp

from chairlift.core.clock import Clock
from chairlift.router.endpoint import Endpoint
from chairlift.router.health.probe import ProbeMemory, ProbeResult, ReplicaClient, probe_replica

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How often the set does what is due by time."""


class ProbedSet(Protocol):
    """The replica set, as its prober sees it.

    Attributes:
        endpoints: the endpoints to probe by replica id.
        membership_listeners: called when a replica was added or removed.
    """

    membership_listeners: list[Callable[[], None]]

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints to probe by replica id."""
        ...

    def endpoint(self, replica_id: str) -> Endpoint | None:
        """Return a replica's endpoint, None if it is not in the set."""
        ...

    def apply_probe(self, replica_id: str, result: ProbeResult, now: float) -> None:
        """Take over what a probe found out."""
        ...

    def next_probe_seconds(self, replica_id: str, random: Random) -> float:
        """Return the seconds until a replica's next probe."""
        ...

    def tick(self, now: float) -> None:
        """Do what is due by time."""
        ...


class ReplicaProber:
    """Probes the replicas of a set. An added replica is probed at once, a removed one no more.

    Attributes:
        num_probes: probes that have ended.
        num_failed_probes: those of them that failed.
    """

    def __init__(
        self, replica_set: ProbedSet, session: aiohttp.ClientSession, clock: Clock, *, timeout_seconds: float,
        headers_of: Callable[[Endpoint], Mapping[str, str]] = lambda endpoint: {}, seed: int = 0,
    ) -> None:  # fmt: skip
        """Create the prober.

        Args:
            replica_set: the replicas to probe.
            session: a session of the prober's own, so that no probe waits for a connection that a stream holds. With
                `TCPConnector(limit=0, force_close=True)` each probe opens a connection, which is a part of the check.
            clock: the clock of the set's `now`.
            timeout_seconds: longest time of the health check, and of the other requests of a probe together.
            headers_of: returns the headers of requests to a replica, such as its API key.
            seed: of the jitter.
        """
        self.num_probes = self.num_failed_probes = 0
        self._set, self._session, self._clock = replica_set, session, clock
        self._timeout_seconds, self._headers_of = timeout_seconds, headers_of
        self._random = Random(seed)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        replica_set.membership_listeners.append(self._match_tasks)

    async def run(self) -> None:
        """Probe until cancelled; the tasks of the replicas end with this one."""
        self._is_running = True
        try:
            self._match_tasks()
            while True:
                self._set.tick(self._clock.now())
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self._is_running = False
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            # A task that still runs could probe with a session that is closed next.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _match_tasks(self) -> None:
        """Follow each change at once: a replica that leaves and returns is another one, of which nothing is known."""
        if not self._is_running:
            return
        endpoints = self._set.endpoints
        for replica_id in self._tasks.keys() - endpoints.keys():
            self._tasks.pop(replica_id).cancel()
        for replica_id in endpoints.keys() - self._tasks.keys():
            name = f"probe {replica_id}"
            self._tasks[replica_id] = asyncio.create_task(self._probe_forever(replica_id), name=name)

    async def _probe_forever(self, replica_id: str) -> None:
        memory, has_bug = ProbeMemory(), False
        while (endpoint := self._set.endpoint(replica_id)) is not None:
            try:
                await self._probe(endpoint, memory)
                has_bug = False
            except Exception:
                if not has_bug:  # a bug of ours is not a fault of the replica; log only the first of a series
                    log.exception("the probe of replica %s failed", replica_id)
                has_bug = True
            await asyncio.sleep(self._set.next_probe_seconds(replica_id, self._random))

    async def _probe(self, endpoint: Endpoint, memory: ProbeMemory) -> None:
        client = ReplicaClient(
            session=self._session, endpoint=endpoint, timeout_seconds=self._timeout_seconds,
            headers=self._headers_of(endpoint),
        )  # fmt: skip
        result = await probe_replica(client, memory, self._clock.now())
        self.num_probes += 1
        self.num_failed_probes += not result.is_success
        self._set.apply_probe(endpoint.url, result, self._clock.now())
