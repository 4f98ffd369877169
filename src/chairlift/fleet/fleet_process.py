"""run: runs the process of a fleet: a router, the autoscaler, and the cluster that both look at.

clients ──► router ──► replicas (processes of their own; a kill -9 of this process leaves them, the next one
              │            ▲    adopts them)
              ▼            │
           autoscaler ──► cluster
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.controller import Controller
from chairlift.cluster.base import Cluster, ReplicaSpec
from chairlift.core.errors import ChairliftError
from chairlift.fleet.autoscaler_metrics import AutoscalerMetrics
from chairlift.fleet.cluster_discovery_source import ClusterSource
from chairlift.fleet.fleet_admin_routes import FleetAdminRoutes
from chairlift.fleet.load_reader import LoadReader
from chairlift.fleet.pool_actuator import PoolActuator
from chairlift.fleet.pool_limits import PoolLimits
from chairlift.fleet.query_signals import Signals
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.fleet.routed_pool import RoutedPool
from chairlift.observability.metrics import AUTOSCALER_METRICS
from chairlift.protocol.router_and_fleet_openapi import fleet_operations
from chairlift.router.extension import RouterExtension
from chairlift.router.router_process import RouterParts, RouterService
from chairlift.web.auth.credentials import Credentials
from chairlift.web.service.http_process import Drain, ProcessParts
from chairlift.web.service.http_process import run as run_process

log = logging.getLogger(__name__)

LOG_RETRY_SECONDS = 1.0
"""Delay after a failure to read the output of the replicas."""

LogLines = Callable[[], AsyncIterator[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """The parts that a fleet's process is built from.

    Attributes:
        router: those of its router; the fleet adds the source of its replicas.
        cluster: where replicas run.
        spec: what a replica is.
        parse_spec: returns the spec of an update from model and arguments; raises ConfigError.
        autoscaler: its settings.
        slo_quantile: share of the requests that must meet the latency targets.
        drain_seconds: time in which a replica that goes may finish its requests.
        start_seconds: time in which a replica must become ready.
        unresponsive_seconds: time after which a replica that does not answer is replaced.
        stop_seconds: time to wait for the end of all replicas at the end of the fleet; 0 leaves them running.
        has_versions: whether the cluster starts replicas of `spec`, so that an update replaces them.
        signals: numbers of the pool from queries; None without queries.
        log_lines: yields the output of the replicas, as (replica id, line); None where the cluster has it.
    """

    router: RouterParts
    cluster: Cluster
    spec: ReplicaSpec
    parse_spec: Callable[[str | None, tuple[str, ...] | None, ReplicaSpec], ReplicaSpec]
    autoscaler: AutoscalerConfig
    slo_quantile: float = 0.95
    drain_seconds: float = 120.0
    start_seconds: float = 1800.0
    unresponsive_seconds: float = 60.0
    stop_seconds: float = 60.0
    has_versions: bool = True
    signals: Signals | None = None
    log_lines: LogLines | None = None


def run(parts: FleetParts) -> int:
    """Serve until a signal or a drain, then stop the replicas; return the exit code. Raises ConfigError."""
    router = parts.router
    return run_process(ProcessParts(
        config=router.config.http, listening=router.listening, tls=router.tls,
        read_credentials=router.read_credentials,
        make_service=lambda credentials, drain: FleetService(parts, credentials, drain),
        print_line=router.print_line, read_settings=router.read_settings,
    ))  # fmt: skip


class FleetService(RouterService):
    """An HttpService: a router whose replicas an autoscaler starts and stops.

    Attributes:
        controller: the autoscaler.
        actuator: the pool.
    """

    def __init__(self, parts: FleetParts, credentials: Credentials, drain: Drain) -> None:
        source, admin = ClusterSource(), FleetAdminRoutes()
        router_parts = replace(parts.router, sources=(*parts.router.sources, source))
        super().__init__(router_parts, credentials, drain, extension=RouterExtension(
            routes=admin.routes(), operations=tuple(fleet_operations()), metrics=AUTOSCALER_METRICS,
            topics={"fleet": admin.live_fields},
        ))  # fmt: skip
        self._fleet = parts
        router = self.router
        self._load_session = router.upstream.make_probe_session()
        self.actuator = PoolActuator(
            parts.cluster, RoutedPool(router, source, parts.slo_quantile, parts.signals),
            LoadReader(self._load_session, router.upstream.key_headers), parts.spec,
            PoolLimits(
                max_replicas=parts.autoscaler.max_replicas, budget=parts.autoscaler.budget,
                drain_seconds=parts.drain_seconds, has_versions=parts.has_versions,
                is_dry_run=parts.autoscaler.is_dry_run,
            ),
            router.clock,
            tracker=ReplicaTracker(
                unresponsive_seconds=parts.unresponsive_seconds, start_seconds=parts.start_seconds
            ),
        )  # fmt: skip
        config = replace(parts.autoscaler, version=parts.spec.version) if parts.has_versions else parts.autoscaler
        self.controller = Controller(self.actuator, config, router.clock)
        router.hold.on_hold = self.controller.wake
        self._is_open = asyncio.Event()  # set once the cluster can be used
        self._metrics = AutoscalerMetrics(router.telemetry.metrics)
        router.debug_parts["autoscaler"] = self.controller.status.as_json
        router.debug_parts["pool"] = admin.pool
        admin.attach(self.controller, self.actuator, parts.parse_spec)

    @property
    def needs_replica(self) -> bool:
        """Whether the start waits for a replica: not where there may be none."""
        return self._fleet.autoscaler.min_replicas > 0

    def background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Yield what runs until the process ends."""
        yield from super().background()
        yield self._scale()
        if self._fleet.log_lines is not None:
            yield self._print_log(self._fleet.log_lines)

    async def start(self) -> Iterable[tuple[str, object]]:
        """Wait for the first answers; returns what is known. Raises ClusterFailed where the cluster cannot be used."""
        await self._fleet.cluster.list()
        self._is_open.set()
        config = self._fleet.autoscaler
        known = await super().start()
        return (*known, ("replicas at least", config.min_replicas), ("replicas at most", config.max_replicas))

    async def begin_drain(self) -> None:
        """Scale no more: the replicas stay until the open requests have ended."""
        self.actuator.pause()

    def update_gauges(self) -> None:
        """Set the gauges, those of the autoscaler too."""
        super().update_gauges()
        self._metrics.update(self.controller.status.values())

    async def close(self) -> None:
        """Stop the replicas, unless they are to stay or it is a dry run, and close the connections."""
        is_dry_run = self._fleet.autoscaler.is_dry_run
        if self._fleet.stop_seconds and self._is_open.is_set() and not is_dry_run:
            self._parts.print_line("stopping the replicas")
            try:
                if left := await self.actuator.stop_all(self._fleet.stop_seconds):
                    log.error("%d replicas have not ended within %g s", left, self._fleet.stop_seconds)
            except (ChairliftError, OSError) as error:
                log.error("the replicas could not be stopped: %s", error)
        await self._fleet.cluster.close()
        await self._load_session.close()
        if self._fleet.signals is not None:
            await self._fleet.signals.close()
        await super().close()

    async def _scale(self) -> None:
        await self._is_open.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.actuator.watch())
            tasks.create_task(self.controller.run())

    async def _print_log(self, log_lines: LogLines) -> None:
        await self._is_open.wait()
        await print_replica_log(log_lines, self._parts.print_line)


async def print_replica_log(log_lines: LogLines, print_line: Callable[[str], None]) -> None:
    """Print the output of the replicas until the cluster is closed; after a failure it is read again."""
    is_read = True
    while True:
        try:
            async for replica_id, line in log_lines():
                is_read = True
                print_line(f"[{replica_id}] {line}")
            return
        except (ChairliftError, OSError) as error:
            if is_read:
                log.warning("the output of the replicas cannot be read now: %s", error)
            is_read = False
        await asyncio.sleep(LOG_RETRY_SECONDS)
