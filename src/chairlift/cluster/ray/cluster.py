"""RayCluster: replicas as actors of Ray, each with a placement group, which survive their controller.

    RayCluster ── calls, as JSON ──► driver process ── Ray ──► actor ── child process ──► chairlift serve

Ray's autoscaler needs no request of ours: it adds nodes for placement groups that are pending, and removes idle ones
when they are gone. `request_resources` would set the minimum of the whole Ray cluster, which others use too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from chairlift.cluster.base import ClusterReplica, PlacementState, ReplicaSpec
from chairlift.cluster.ray.config import RayConfig, require_ray
from chairlift.cluster.ray.driver_process import DriverProcess
from chairlift.cluster.ray.names import GroupName, next_number
from chairlift.cluster.ray.placement import choose_bundle
from chairlift.cluster.ray.replica_view import FleetReplica, view_replicas
from chairlift.cluster.ray.scale_plan import StartDelay, plan_scale
from chairlift.cluster.ray.snapshot import RayGroup, Snapshot, to_snapshot
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)

KEEP_FAILED_SECONDS = 60.0
"""Seconds for which `list` names a failed replica after its resources were freed."""


Replicas = Sequence[FleetReplica]


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
    ) -> None:
        if driver is None:
            require_ray()
        self._config, self._clock, self._wall_clock = config, clock, wall_clock
        self._driver: Driver = driver or DriverProcess(config)
        self._lock = asyncio.Lock()  # one change at a time
        self._urls: dict[str, str] = {}
        self._delay = StartDelay()
        self._cleared: list[tuple[float, ClusterReplica]] = []

    async def list(self) -> Sequence[ClusterReplica]:
        """Return all replicas, also those that start, stop or failed a short time ago. Raises ClusterFailed."""
        _, replicas = await self._look()
        now = self._clock()
        self._cleared = [(at, each) for at, each in self._cleared if now - at < KEEP_FAILED_SECONDS]
        present = {each.name.replica_id for each in replicas}
        failed = [
            replace(each, age_seconds=each.age_seconds + now - at)
            for at, each in self._cleared
            if each.replica_id not in present
        ]
        return [*(each.replica for each in replicas), *failed]

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Ask for `count` more replicas. Raises ClusterFailed."""
        async with self._lock:
            snapshot, replicas = await self._look()
            await self._start(spec, count, snapshot, replicas)

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Drain these replicas, then stop them. Raises ClusterFailed."""
        async with self._lock:
            _, replicas = await self._look()
            await self._stop([each for each in replicas if each.name.replica_id in replica_ids])

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Have `target` replicas besides those of `remove`; free what failed replicas hold. Raises ClusterFailed."""
        async with self._lock:
            snapshot, replicas = await self._look()
            plan = plan_scale(replicas, target, remove)
            await self._clear(plan.clear)
            self._delay.record(replicas, plan.clear, self._clock())
            await self._stop(plan.stop)
            delay = self._delay.seconds_left(spec.version, self._clock())
            if plan.num_start and delay:
                log.info("the next replica starts in %.1f s: the last ones of its version failed", delay)
            elif plan.num_start:
                gone = {each.name.text for each in plan.clear}
                snapshot = Snapshot(
                    nodes=snapshot.nodes, groups=[each for each in snapshot.groups if each.name not in gone]
                )
                await self._start(spec, plan.num_start, snapshot, replicas)

    async def close(self) -> None:
        """End the connection to Ray; the replicas run on."""
        await self._driver.close()

    async def _look(self) -> tuple[Snapshot, Replicas]:
        snapshot = to_snapshot(await self._driver.call("snapshot"))
        replicas = view_replicas(
            snapshot, self._config.fleet, now=self._wall_clock(), stop_timeout=self._config.stop_timeout_seconds,
            urls=self._urls,
        )  # fmt: skip
        self._urls = {each.name.replica_id: each.replica.url for each in replicas if each.replica.url}
        return snapshot, replicas

    async def _start(self, spec: ReplicaSpec, count: int, snapshot: Snapshot, replicas: Replicas) -> None:
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
                failed = failed or error
                continue
            log.info("replica %s was asked to stop", each.name.replica_id)
        if failed is not None:
            raise failed

    async def _clear(self, replicas: Replicas) -> None:
        for each in replicas:
            await self._driver.call("remove", group=each.name.text)
            if each.replica.state is PlacementState.FAILED:
                self._cleared.append((self._clock(), each.replica))
                log.warning("replica %s failed: %s", each.name.replica_id, each.replica.reason)
