"""RayCluster: replicas as actors of Ray, each with a placement group, which survive their controller.

    RayCluster ── calls, as JSON ──► driver process ── Ray ──► actor ── child process ──► chairlift serve

Ray's autoscaler needs no request of ours: it adds nodes for placement groups that are pending, and removes idle ones
when they are gone. `request_resources` would set the minimum of the whole Ray cluster, which others use too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.local.readiness_probe import is_serving
from chairlift.cluster.ray.config import RayConfig, require_ray
from chairlift.cluster.ray.crash_loop_backoff import MAX_FAILURES, CrashLoopBackoff
from chairlift.cluster.ray.driver_process import DriverProcess
from chairlift.cluster.ray.placement import choose_bundle
from chairlift.cluster.ray.placement_group_name import GroupName, next_number
from chairlift.cluster.ray.replica_view import RayReplica, view_replicas
from chairlift.cluster.ray.scale_plan import leftovers, plan_scale
from chairlift.cluster.ray.snapshot import RayGroup, RaySnapshot, to_snapshot
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)

KEEP_FAILED_SECONDS = 60.0
"""Seconds for which `list` names a failed replica after its resources were freed."""


MAX_FAILED_STOPS = 3
"""Times that an actor may fail to note that it is to stop, in a row; then it is killed."""

MAX_PROBES = 64
"""Readiness checks of one round at most."""

Replicas = Sequence[RayReplica]
Probe = Callable[[str], Awaitable[bool]]


class Driver(Protocol):
    """Makes calls to Ray; DriverProcess is one."""

    async def call(self, name: str, **arguments: Any) -> Any:
        """Make a call and return its result. Raises ClusterFailed."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class RayCluster:
    """A Cluster of Ray actors. Raises ConfigError without ray."""

    def __init__(
        self,
        config: RayConfig,
        *,
        driver: Driver | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        probe: Probe | None = None,
    ) -> None:
        if driver is None:
            require_ray()
        self._config, self._clock, self._wall_clock = config, clock, wall_clock
        self._driver: Driver = driver or DriverProcess(config)
        self._lock = asyncio.Lock()  # one change at a time
        self._urls: dict[str, str] = {}
        self._delay = CrashLoopBackoff()
        self._cleared: list[tuple[float, ClusterReplica]] = []
        self._num_failed_stops: dict[str, int] = {}
        self._probe = probe or _is_serving
        self._served: set[str] = set()
        self._probes: asyncio.Task[None] | None = None

    async def list(self) -> Sequence[ClusterReplica]:
        """Return all replicas, also those that start, stop or failed a short time ago. Raises ClusterFailed.

        What failed replicas hold is freed, so that others can have it.
        """
        _, replicas = await self._look()
        self._start_probes(replicas)
        if not self._lock.locked():  # else the change that goes on does it
            async with self._lock:
                with suppress(ClusterFailed):  # the next call tries again
                    await self._clear(leftovers(replicas), replicas)
        present = {each.name.replica_id for each in replicas}
        failed = [each for each in self._failed() if each.replica_id not in present]
        return [*(each.replica for each in replicas), *failed]

    def _failed(self) -> Sequence[ClusterReplica]:
        """Return the replicas that were cleared away: for a while, and in a crash loop the last one for ever."""
        now = self._clock()
        last = {each.version: each.replica_id for _, each in self._cleared if self._delay.is_crash_loop(each.version)}
        self._cleared = [
            (at, each) for at, each in self._cleared
            if now - at < KEEP_FAILED_SECONDS or last.get(each.version) == each.replica_id
        ]  # fmt: skip
        return [
            replace(
                each, age_seconds=each.age_seconds + now - at,
                reason=f"{each.reason}; {self._held_back(each.version)}".removesuffix("; "),
            ) for at, each in self._cleared
        ]  # fmt: skip

    def _held_back(self, version: str) -> str:
        """Return why no replica of a version may start now; "" if it may."""
        if self._delay.is_crash_loop(version):
            return (
                f"crash loop: {MAX_FAILURES} starts in a row ended without ever serving, so no replica of version "
                f"{version} is started until its settings change, an operator asks for it, or the fleet is started anew"
            )
        seconds = self._delay.seconds_left(version, self._clock())
        return f"the next replica of version {version} starts in {seconds:.1f} s at the earliest" if seconds else ""

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Ask for `count` more replicas. Raises ClusterFailed, also while failures of the version hold it back."""
        async with self._lock:
            snapshot, replicas = await self._look()
            cleared = await self._clear(leftovers(replicas), replicas)
            if reason := self._held_back(spec.version):
                raise ClusterFailed(reason)
            await self._start(spec, count, _without(snapshot, cleared), replicas)

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Drain these replicas, then stop them. Raises ClusterFailed."""
        async with self._lock:
            _, replicas = await self._look()
            cleared = await self._clear(leftovers(replicas), replicas)
            await self._stop([each for each in replicas if each.name.replica_id in replica_ids and each not in cleared])

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Have `target` replicas besides those of `remove`; free what failed replicas hold. Raises ClusterFailed."""
        async with self._lock:
            snapshot, replicas = await self._look()
            plan = plan_scale(replicas, target, remove)
            await self._clear(plan.clear, replicas)
            await self._stop([each for each in plan.stop if each not in plan.clear])
            reason = self._held_back(spec.version)
            if plan.num_start and reason:
                log.info("%d replicas are missing: %s", plan.num_start, reason)
            elif plan.num_start:
                await self._start(spec, plan.num_start, _without(snapshot, plan.clear), replicas)

    async def release_failed(self) -> None:
        """Let versions start at once whose replicas failed, also those in a crash loop."""
        self._delay.release()

    async def close(self) -> None:
        """End the connection to Ray; the replicas run on."""
        if self._probes is not None and not self._probes.done():
            self._probes.cancel()
            await asyncio.gather(self._probes, return_exceptions=True)
        await self._driver.close()

    def _start_probes(self, replicas: Replicas) -> None:
        """Begin to ask the replicas that have not served yet whether they do."""
        self._served &= {each.name.replica_id for each in replicas}
        if self._probes is not None and not self._probes.done():
            return
        urls = {
            each.name.replica_id: each.replica.url for each in replicas
            if each.replica.state is PlacementState.RUNNING and each.replica.url
            and each.name.replica_id not in self._served
        }  # fmt: skip
        if urls:
            self._probes = asyncio.create_task(self._note_served(dict(list(urls.items())[:MAX_PROBES])))

    async def _note_served(self, urls: Mapping[str, str]) -> None:
        answers = await asyncio.gather(*map(self._probe, urls.values()))
        self._served |= {name for name, answer in zip(urls, answers, strict=True) if answer}

    async def _look(self) -> tuple[RaySnapshot, Replicas]:
        answer = await self._driver.call("snapshot")
        try:
            snapshot = to_snapshot(answer)
        except msgspec.ValidationError as error:
            await self._driver.close()  # the next call starts another one
            raise ClusterFailed(f"Ray at {self._config.address} answers nonsense: {error}") from None
        replicas = view_replicas(
            snapshot, self._config.fleet, now=self._wall_clock(), stop_timeout=self._config.stop_timeout_seconds,
            urls=self._urls,
        )  # fmt: skip
        self._urls = {each.name.replica_id: each.replica.url for each in replicas if each.replica.url}
        present = {each.name.replica_id for each in replicas}
        self._num_failed_stops = {name: num for name, num in self._num_failed_stops.items() if name in present}
        return snapshot, replicas

    async def _start(self, spec: ReplicaSpec, count: int, snapshot: RaySnapshot, replicas: Replicas) -> None:
        config, groups = self._config, list(snapshot.groups)
        first = next_number(each.name for each in replicas)
        launch = {
            "command": config.command, "model": spec.model, "arguments": spec.arguments,
            "environ": dict(spec.environ), "host": config.host,
        }  # fmt: skip
        for number in range(first, first + count):
            name = GroupName.new(
                config.fleet, number, version=spec.version, replica_type=spec.replica_type, now=self._wall_clock()
            )
            extra = config.type_resources.get(spec.replica_type)
            bundle, node_id = choose_bundle(spec, snapshot.nodes, groups, extra)
            is_created = await self._driver.call(
                "create", group=name.text, bundle=bundle, node_id=node_id, runtime_env=dict(config.runtime_env),
                launch=launch,
            )  # fmt: skip
            if not is_created:
                log.warning("replica %d of fleet %s was started by another controller", number, config.fleet)
                continue
            groups.append(RayGroup(name=name.text, state="PENDING", node_id=node_id, bundle=bundle))
            log.info("replica %s was asked for", name.replica_id)

    async def _stop(self, replicas: Replicas) -> None:
        """Drain the replicas that have a place, and remove the others. Raises ClusterFailed for the first failure."""
        failed: ClusterFailed | None = None
        for each in replicas:
            try:
                if each.replica.state is PlacementState.FAILED or not each.is_placed:
                    await self._driver.call("remove", group=each.name.text)
                else:
                    await self._driver.call(
                        "stop", group=each.name.text, timeout_seconds=self._config.stop_timeout_seconds
                    )
            except ClusterFailed as error:
                failed = await self._kill_after_failed_stops(each, error) or failed
                continue
            self._num_failed_stops.pop(each.name.replica_id, None)
            log.info("replica %s was asked to stop", each.name.replica_id)
        if failed is not None:
            raise failed

    async def _kill_after_failed_stops(self, replica: RayReplica, error: ClusterFailed) -> ClusterFailed | None:
        """Kill an actor that has failed to stop too often, and return None; otherwise return the error."""
        replica_id = replica.name.replica_id
        num_failed = self._num_failed_stops[replica_id] = self._num_failed_stops.get(replica_id, 0) + 1
        if num_failed < MAX_FAILED_STOPS:
            return error
        try:
            await self._driver.call("remove", group=replica.name.text)
        except ClusterFailed as second:
            return second
        log.warning("replica %s is killed, because %d stops have failed: %s", replica_id, num_failed, error)
        return None

    async def _clear(self, leftover: Replicas, replicas: Replicas) -> Replicas:
        """Free what failed and overdue replicas hold; returns them. Raises ClusterFailed."""
        for each in leftover:
            await self._driver.call("remove", group=each.name.text)
            if each.replica.state is PlacementState.FAILED:
                self._cleared.append((self._clock(), each.replica))
                log.warning("replica %s failed: %s", each.name.replica_id, each.replica.reason)
            else:
                log.warning("replica %s has not stopped in time and is killed", each.name.replica_id)
        self._delay.record(replicas, leftover, self._clock(), self._served)
        return leftover


def _without(snapshot: RaySnapshot, cleared: Replicas) -> RaySnapshot:
    """Return a snapshot without the groups of replicas that were cleared away."""
    gone = {each.name.text for each in cleared}
    return RaySnapshot(nodes=snapshot.nodes, groups=[each for each in snapshot.groups if each.name not in gone])


async def _is_serving(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.hostname and parts.port) and await is_serving(parts.hostname or "", parts.port or 0, "/readyz")
