"""PoolActuator: measures the fleet's pool for the autoscaler, and carries out what it decides.

sample()   cluster.list() + /load of each replica + latencies and held requests of the router
apply()    starts what is missing (an old replica that drains is taken back first), drains what is to go
watch()    tells the router which replicas serve, stops the drained ones, replaces stuck ones, goes on with an
           update; every WATCH_SECONDS while something starts or drains. In a dry run it only looks.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.cluster.base import Cluster, RemovalOrder, ReplicaSpec
from chairlift.cluster.cluster_replica import COUNTED_STATES, ClusterReplica, PlacementState
from chairlift.core.clock import Clock
from chairlift.core.errors import ChairliftError
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.pool_limits import PoolLimits
from chairlift.fleet.replica_tracker import ReplicaTracker, StuckReplica, TrackedPool
from chairlift.fleet.rolling_update import RollingUpdate
from chairlift.fleet.stuck_replacement import StuckReplacement
from chairlift.router.health.replica_load import ReplicaLoad

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
IDLE_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
"""Longest delay after steps in a row that failed."""

LOG_SECONDS = 60.0
"""Seconds between two log lines about a failure that lasts."""

STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


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


@dataclass(slots=True)
class PoolStatus:
    """What an operator sees of the pool.

    Attributes:
        target: replicas that the last decision wants.
        version: version of the settings of new replicas.
        is_updating: whether replicas of another version are being replaced.
        update_failure: why the last update was stopped or cannot go on now; "" if it could.
        failed: why replicas have failed, by id.
    """

    target: int = 0
    version: str = ""
    is_updating: bool = False
    update_failure: str = ""
    failed: dict[str, str] = field(default_factory=dict)


class PoolActuator:
    """An Actuator over a cluster and a router. Belongs to one event loop.

    Attributes:
        status: for operators.
        on_version: is called with the version of new replicas when an update sets it, or fails and sets it back.
    """

    def __init__(
        self, cluster: Cluster, router: PoolRouter, reader: PoolLoads, spec: ReplicaSpec, limits: PoolLimits,
        clock: Clock, *, tracker: ReplicaTracker | None = None, wall_seconds: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.status = PoolStatus(version=spec.version)
        self.on_version: Callable[[str], None] = lambda version: None
        self._cluster, self._router, self._reader, self._limits = cluster, router, reader, limits
        self._clock, self._wall_seconds = clock, wall_seconds
        self._tracker = tracker or ReplicaTracker()
        self._update = RollingUpdate(spec)
        self._replacement, self._owes_start = StuckReplacement(self._tracker.start_seconds), False
        self._replicas: tuple[ClusterReplica, ...] = ()
        self._pool = TrackedPool()
        self._draining: dict[str, float] = {}
        self._target: int | None = None
        self._changes = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._is_paused = False
        self._logged_at: dict[str, float] = {}

    @property
    def spec(self) -> ReplicaSpec:
        """What new replicas are."""
        return self._update.spec

    @property
    def accepts_updates(self) -> bool:
        """Whether replicas can be replaced by those of another spec: by a cluster that starts them, in no dry run."""
        return self._limits.has_versions and not self._limits.is_dry_run

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
            if self._is_paused or self._limits.is_dry_run:
                return
            self._target = self.status.target = decision.target
            self._owes_start = False
            if not self._update.is_active:  # an update has one replica more than the target, and removes old ones
                await self._drain(await self._removable(decision.remove))
            await self._start_missing()
        self._wakeup.set()

    def update(self, spec: ReplicaSpec) -> None:
        """Replace all replicas of another version than this spec's, one by one."""
        assert self.accepts_updates
        self._update.begin(spec, self._replicas)
        self._show_update()
        self._wakeup.set()

    def replicas(self) -> list[dict[str, Any]]:
        """Return what is known about each replica, as JSON values."""
        states = {each.replica_id: each.state for each in self._pool.samples}
        return [{**asdict(each), "state": states.get(each.replica_id, each.state)} for each in self._replicas]

    # -- what goes on by itself ------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Follow the replicas until cancelled; after a failure it goes on, whatever has failed."""
        num_failures = 0
        while True:
            self._wakeup.clear()
            try:
                await self.step()
                num_failures = 0
            except Exception as error:
                num_failures += 1
                self._log_failure(error, num_failures)
            is_busy = any(each.state is not READY for each in self._pool.samples) or self._update.is_active
            seconds = WATCH_SECONDS if is_busy else IDLE_SECONDS
            if num_failures:
                seconds = min(MAX_BACKOFF_SECONDS, IDLE_SECONDS * 2.0 ** min(num_failures - 1, 10))
            try:
                async with asyncio.timeout(seconds):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    async def step(self) -> None:
        """Do once what `watch` does. Raises ClusterFailed, after it has done all that it could."""
        async with self._changes:
            await self._refresh()
            if self._limits.is_dry_run:
                return
            parts = [self._stop_drained]
            if not self._is_paused:
                parts += [self._replace_stuck, *([self._continue_update] if self._limits.has_versions else [])]
            failures = list[Exception]()
            for part in parts:
                try:
                    await part()
                except (ChairliftError, OSError) as error:
                    failures.append(error)
            if failures:
                raise failures[0]

    def pause(self) -> None:
        """Start nothing any more: the fleet ends."""
        self._is_paused = True

    async def stop_all(self, seconds: float) -> int:
        """Stop all replicas, and wait for their end; returns how many were left then. Stops none in a dry run."""
        async with self._changes:
            deadline = self._clock.now() + seconds
            while self._clock.now() < deadline and not self._limits.is_dry_run:
                replicas = await self._cluster.list()
                running = [each.replica_id for each in replicas if each.state is not PlacementState.FAILED]
                if not running:
                    return 0
                await self._cluster.stop(running)
                await asyncio.sleep(WATCH_SECONDS)
            return 0 if self._limits.is_dry_run else len(running)

    def _log_failure(self, error: Exception, count: int) -> None:
        if self._is_log_due(type(error).__name__):
            is_expected = isinstance(error, ChairliftError | OSError)
            text = "the replicas cannot be looked after now, failure %d in a row: %s"
            if is_expected:
                log.warning(text, count, error)
            else:
                log.error(text, count, error, exc_info=error)

    def _is_log_due(self, name: str) -> bool:
        """Return whether a failure is logged now, which it is once in LOG_SECONDS."""
        now = self._clock.now()
        if now - self._logged_at.get(name, -LOG_SECONDS) < LOG_SECONDS:
            return False
        self._logged_at[name] = now
        return True

    # -- under the lock --------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        replicas = tuple(await self._cluster.list())
        urls = [each.url for each in replicas if each.url and each.state is PlacementState.RUNNING]
        now = self._clock.now()
        loads = await self._reader.read(urls, now)
        ids = {each.replica_id for each in replicas}
        self._draining = {name: since for name, since in self._draining.items() if name in ids}
        pool = self._tracker.update(replicas, loads, self._draining.keys(), now)
        samples = tuple(replace(each, can_return=self._can_return(each, pool)) for each in pool.samples)
        self._replicas, self._pool = replicas, replace(pool, samples=samples)
        if self._target is None:  # what a former process has started stays as it is until a decision
            self._target = sum(each.state is not DRAINING for each in samples)
        self._update.observe(samples, replicas)
        self._router.set_serving(tuple(pool.urls[each] for each in pool.serving))
        for name, reason in pool.failed.items():
            if name not in self.status.failed:
                log.error("replica %s has failed: %s", name, reason)
        self.status.failed = dict(pool.failed)

    def _can_return(self, sample: ReplicaSample, pool: TrackedPool) -> bool:
        """Return whether a replica drains and can be taken back."""
        is_current = not self._limits.has_versions or sample.version == self._update.growth_spec.version
        return sample.replica_id in self._draining and sample.replica_id in pool.serving and is_current

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

    async def _start_missing(self) -> int:
        """Have the target's replicas, beside those that drain; take draining ones of this version back first.

        Returns how many are missing as before, because the limits have no room for them.
        """
        samples = {each.replica_id: each for each in self._pool.samples}
        num_live, num_reserved = self._update.growth(self._pool.samples)
        missing, room = (self._target or 0) - num_live, self._limits.room(self._pool.samples) - num_reserved
        for replica_id in sorted(self._draining, key=self._draining.__getitem__, reverse=True):
            if missing <= 0 or room < 0:
                break
            if replica_id in samples and self._can_return(samples[replica_id], self._pool):
                del self._draining[replica_id]
                self._router.undrain(self._pool.urls[replica_id])
                missing -= 1
        if (num_new := min(missing, room)) > 0:
            await self._cluster.scale(self._update.growth_spec, self._num_running + num_new)
            missing -= num_new
            await self._refresh()  # what is decided next must count them
        return missing

    @property
    def _num_running(self) -> int:
        return sum(each.state in COUNTED_STATES for each in self._replicas)

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
        """Stop one stuck replica if it is its turn, and start what is missing for it."""
        now = self._clock.now()
        for replica_id in self._replacement.candidates(self._pool, now):
            stuck = self._pool.stuck[replica_id]
            if await self._removable((replica_id,)) != (replica_id,):
                if self._is_log_due("removable"):
                    log.warning("%s, and is not stopped, since others would go instead", _described(replica_id, stuck))
                continue
            log.error("%s: it is stopped and replaced", _described(replica_id, stuck))
            await self._cluster.stop((replica_id,))
            self._replacement.note_stopped(replica_id, now)
            self._owes_start = True
            version = next(each.version for each in self._replicas if each.replica_id == replica_id)
            if not stuck.was_ready and self._update.note_stuck(version):
                await self._stop_update(_described(replica_id, stuck))
            await self._refresh()
            break
        if self._owes_start:
            self._owes_start = await self._start_missing() > 0

    async def _continue_update(self) -> None:
        update, was_active = self._update, self._update.is_active
        if reason := update.failure_reason():
            await self._stop_update(reason)
            return
        step = update.plan(self._pool.samples, self._target or 0, self._limits.room(self._pool.samples))
        if was_active and not update.is_active:
            log.info("all replicas have version %s", self.spec.version)
            self._owes_start = await self._start_missing() > 0
        if was_active:
            update.failure = ""
        try:
            if step.remove:
                await self._drain(step.remove)
                await self._refresh()
                await self._start_missing()
            elif step.num_new and update.was_started:
                await self._cluster.scale(self.spec, self._num_running + step.num_new)
                await self._refresh()
            elif step.num_new:  # an operator asks for it, whatever has failed before
                await self._cluster.start(self.spec, step.num_new)
                update.was_started = True
                await self._refresh()
        except ChairliftError as error:
            update.failure = f"the update to version {self.spec.version} cannot go on now: {error}"
            raise
        finally:
            self._show_update()

    async def _stop_update(self, reason: str) -> None:
        """Give an update up: old replicas stay, and what has started or failed of the new version goes."""
        version = self._update.stop(reason)
        log.error("%s; the replicas of other versions stay", self._update.failure)
        self._show_update()
        states = {each.replica_id: each.state for each in self._pool.samples}
        useless = [
            each.replica_id for each in self._replicas if each.version == version != self.spec.version and (
                each.state is PlacementState.FAILED or states.get(each.replica_id) is STARTING
            )
        ]  # fmt: skip
        if useless:
            await self._cluster.stop(useless)
        await self._refresh()
        self._owes_start = await self._start_missing() > 0

    def _show_update(self) -> None:
        update, status = self._update, self.status
        status.is_updating, status.update_failure = update.is_active, update.failure
        if status.version != update.spec.version:
            status.version = update.spec.version
            self.on_version(status.version)


def _described(replica_id: str, stuck: StuckReplica) -> str:
    return f"replica {replica_id} is stuck: {stuck.reason}"
