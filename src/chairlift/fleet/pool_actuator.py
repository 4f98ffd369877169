"""PoolActuator: measures the fleet's pool for the autoscaler, and carries out what it decides.

sample()   cluster.list() + /load of each replica + latencies and held requests of the router
apply()    starts what is missing (an old replica that drains is taken back first), drains what is to go
watch()    tells the router which replicas serve, stops the drained ones, replaces stuck ones, goes on with an
           update; every WATCH_SECONDS while something starts or drains
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.signals import PoolSample
from chairlift.cluster.base import Cluster, ClusterReplica, PlacementState, RemovalOrder, ReplicaSpec
from chairlift.core.clock import Clock
from chairlift.core.errors import ChairliftError
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.replica_tracker import ReplicaTracker, TrackedPool
from chairlift.fleet.rolling_update import plan_update
from chairlift.router.health.replica_load import ReplicaLoad

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
IDLE_SECONDS = 1.0
STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING
RUNS = frozenset({PlacementState.PENDING, PlacementState.RUNNING})
EMPTY_POOL = TrackedPool(samples=(), urls={}, serving=(), stuck=(), failed={})


class PoolLoads(Protocol):
    """Reads the load of replicas."""

    async def read(self, urls: Sequence[str], now: float) -> Mapping[str, ReplicaLoad]:
        """Return the reports by URL, without those that did not come."""
        ...


class PoolRouter(Protocol):
    """What the actuator needs of the router in front of the pool."""

    def set_serving(self, urls: tuple[str, ...]) -> None:
        """Use these replicas, and no others."""
        ...

    def drain(self, url: str) -> None:
        """Send a replica no new requests, and hand its streams over."""
        ...

    def undrain(self, url: str) -> None:
        """Use a replica again."""
        ...

    def num_open_requests(self, url: str) -> int:
        """Return how many requests are open there."""
        ...

    async def measure(self, sample: PoolSample) -> PoolSample:
        """Return the sample with what the router knows: held requests, latencies, rates."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of the actuator.

    Attributes:
        max_replicas: replicas that exist at most at a time, those that start or drain included.
        drain_seconds: time after which a draining replica is stopped though requests are open there.
        has_versions: whether the cluster starts replicas of a ReplicaSpec, so that others are of an older version.
    """

    max_replicas: int
    drain_seconds: float = 120.0
    has_versions: bool = True


@dataclass(slots=True)
class PoolStatus:
    """What an operator sees of the pool.

    Attributes:
        target: replicas that the last decision wants.
        version: version of the settings of new replicas.
        is_updating: whether replicas of another version are left.
        failed: why replicas have failed, by id.
    """

    target: int = 0
    version: str = ""
    is_updating: bool = False
    failed: dict[str, str] = field(default_factory=dict)


class PoolActuator:
    """An Actuator over a cluster and a router. Belongs to one event loop.

    Attributes:
        spec: what new replicas are; another one begins a rolling update.
        status: for operators.
    """

    def __init__(
        self, cluster: Cluster, router: PoolRouter, reader: PoolLoads, spec: ReplicaSpec, limits: PoolLimits,
        clock: Clock, *, tracker: ReplicaTracker | None = None, wall_seconds: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.status = PoolStatus(version=spec.version)
        self._cluster, self._router, self._reader, self._limits = cluster, router, reader, limits
        self._clock, self._wall_seconds = clock, wall_seconds
        self._tracker = tracker or ReplicaTracker()
        self._replicas: tuple[ClusterReplica, ...] = ()
        self._pool = EMPTY_POOL
        self._draining: dict[str, float] = {}
        self._target: int | None = None
        self._changes = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._is_paused = False

    # -- the autoscaler's side -------------------------------------------------------------------------------------

    async def sample(self) -> PoolSample:
        """Return the pool as it is now. Raises ClusterFailed."""
        async with self._changes:
            await self._refresh()
            sample = PoolSample(
                at_seconds=self._clock.now(), wall_seconds=self._wall_seconds(), replicas=self._pool.samples
            )
        return await self._router.measure(sample)

    async def apply(self, decision: Decision) -> None:
        """Start what is missing, and drain what is to go. Raises ClusterFailed."""
        async with self._changes:
            if self._is_paused:
                return
            self._target = self.status.target = decision.target
            if not self.status.is_updating:  # an update has one replica more than the target, and removes old ones
                await self._drain(await self._removable(decision.remove))
            await self._start_missing()
        self._wakeup.set()

    def update(self, spec: ReplicaSpec) -> None:
        """Replace all replicas of another version than this spec's, one by one."""
        self.spec = spec
        self.status.version, self.status.is_updating = spec.version, True
        self._wakeup.set()

    def replicas(self) -> list[dict[str, Any]]:
        """Return what is known about each replica, as JSON values."""
        states = {each.replica_id: each.state for each in self._pool.samples}
        return [{**asdict(each), "state": states.get(each.replica_id, each.state)} for each in self._replicas]

    # -- what goes on by itself ------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Follow the replicas until cancelled; a cluster that is down is asked again."""
        while True:
            try:
                await self.step()
            except (ChairliftError, OSError) as error:
                log.warning("the fleet's replicas are not known now: %s", error)
            is_busy = any(each.state is not READY for each in self._pool.samples) or self.status.is_updating
            self._wakeup.clear()
            try:
                async with asyncio.timeout(WATCH_SECONDS if is_busy else IDLE_SECONDS):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    async def step(self) -> None:
        """Do once what `watch` does. Raises ClusterFailed."""
        async with self._changes:
            await self._refresh()
            await self._stop_drained()
            if not self._is_paused:
                await self._replace_stuck()
                if self._limits.has_versions:
                    await self._continue_update()

    def pause(self) -> None:
        """Start nothing any more: the fleet ends."""
        self._is_paused = True

    async def stop_all(self, seconds: float) -> int:
        """Stop all replicas, and wait for their end; returns how many were left then."""
        async with self._changes:
            deadline = self._clock.now() + seconds
            while self._clock.now() < deadline:
                replicas = await self._cluster.list()
                running = [each.replica_id for each in replicas if each.state is not PlacementState.FAILED]
                if not running:
                    return 0
                await self._cluster.stop(running)
                await asyncio.sleep(WATCH_SECONDS)
            return len(running)

    # -- under the lock --------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        replicas = tuple(await self._cluster.list())
        urls = [each.url for each in replicas if each.url and each.state is PlacementState.RUNNING]
        now = self._clock.now()
        loads = await self._reader.read(urls, now)
        ids = {each.replica_id for each in replicas}
        self._draining = {name: since for name, since in self._draining.items() if name in ids}
        self._replicas, self._pool = replicas, self._tracker.update(replicas, loads, self._draining.keys(), now)
        self._router.set_serving(tuple(self._pool.urls[each] for each in self._pool.serving))
        for name, reason in self._pool.failed.items():
            if name not in self.status.failed:
                log.error("replica %s has failed: %s", name, reason)
        self.status.failed = dict(self._pool.failed)

    async def _removable(self, replica_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the replicas that go in fact: some clusters do not let one choose."""
        if replica_ids and isinstance(self._cluster, RemovalOrder):
            return tuple(await self._cluster.removable(replica_ids))
        return replica_ids

    async def _drain(self, replica_ids: tuple[str, ...]) -> None:
        """Drain those that serve; those that have never served are stopped at once."""
        serving, now = set(self._pool.serving), self._clock.now()
        known = {each.replica_id for each in self._replicas}
        unused = [each for each in replica_ids if each in known and each not in serving]
        for replica_id in replica_ids:
            if replica_id in serving and replica_id not in self._draining:
                self._draining[replica_id] = now
                self._router.drain(self._pool.urls[replica_id])
        if unused:
            await self._cluster.stop(unused)

    async def _start_missing(self) -> None:
        """Have the target's replicas, beside those that drain; take draining ones of this version back first."""
        if self._target is None:
            return
        states = {each.replica_id: each for each in self._pool.samples}
        missing = self._target - sum(each.state is not DRAINING for each in states.values())
        for replica_id in sorted(self._draining, key=self._draining.__getitem__, reverse=True):
            sample = states.get(replica_id)
            if missing <= 0:
                break
            is_current = sample is not None and (not self._limits.has_versions or sample.version == self.spec.version)
            if is_current and replica_id in self._pool.serving:
                del self._draining[replica_id]
                self._router.undrain(self._pool.urls[replica_id])
                missing -= 1
        room = self._limits.max_replicas - len(states)
        if (num_new := min(missing, room)) > 0:
            num_running = sum(each.state in RUNS for each in self._replicas)
            await self._cluster.scale(self.spec, num_running + num_new)

    async def _stop_drained(self) -> None:
        now = self._clock.now()
        ended = [
            name for name, since in self._draining.items() if name in self._pool.serving and (
                self._router.num_open_requests(self._pool.urls[name]) == 0
                or now - since > self._limits.drain_seconds
            )
        ]  # fmt: skip
        if ended:
            await self._cluster.stop(ended)

    async def _replace_stuck(self) -> None:
        if not self._pool.stuck:
            return
        log.error("stopped, because they do not answer: %s", ", ".join(self._pool.stuck))
        await self._cluster.stop(self._pool.stuck)
        await self._refresh()
        await self._start_missing()

    async def _continue_update(self) -> None:
        samples = self._pool.samples
        target = self._target if self._target is not None else sum(each.state is READY for each in samples)
        step = plan_update(samples, self.spec.version, target, self._limits.max_replicas)
        was_updating, self.status.is_updating = self.status.is_updating, not step.is_complete
        if was_updating and step.is_complete:
            log.info("all replicas have version %s", self.spec.version)
        if step.remove:
            await self._drain(step.remove)
            await self._refresh()
        if step.num_new:
            await self._cluster.start(self.spec, step.num_new)
        elif step.remove:
            await self._start_missing()
