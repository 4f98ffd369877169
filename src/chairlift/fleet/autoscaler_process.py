"""run: runs the process of an autoscaler alone, for replicas behind a router that is another program."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.controller import Controller
from chairlift.cluster.base import Cluster, ReplicaSpec
from chairlift.core.clock import SystemClock
from chairlift.core.errors import NotFound
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.autoscaler_metrics import AutoscalerMetrics
from chairlift.fleet.load_reader import LoadReader
from chairlift.fleet.pool_actuator import PoolActuator
from chairlift.fleet.pool_limits import PoolLimits
from chairlift.fleet.query_signals import Signals
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.fleet.unrouted_pool import UnroutedPool
from chairlift.observability.metrics import AUTOSCALER_METRICS, CONTENT_TYPE, Metrics
from chairlift.router.debug_report import plain_value
from chairlift.router.proxy.upstream import Upstream, UpstreamConfig
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController
from chairlift.web.auth.credentials import Credentials
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.route_entry import RouteEntry
from chairlift.web.send_response import send_bytes, send_object
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.http_process import Drain, ProcessParts, ReloadedSettings
from chairlift.web.service.http_process import run as run_process
from chairlift.web.service.listen_address import ListenAddress
from chairlift.web.service.process_report import process_report

GAUGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerParts:
    """The parts that an autoscaler's process is built from.

    Attributes:
        http: the HTTP settings of its own routes.
        listening: the listen address.
        tls: the context with its TLS files; None without TLS.
        read_credentials: reads the keys, again on SIGHUP; raises ConfigError.
        print_line: prints a line for people.
        cluster: where replicas run.
        spec: what a replica is, for clusters that start them from it.
        has_versions: whether the cluster does.
        autoscaler: the autoscaler's settings.
        upstream: key and TLS files for the replicas.
        signals: numbers from elsewhere; None without.
        start_seconds: time in which a replica must become ready.
        unresponsive_seconds: time after which a replica that does not answer is replaced.
        read_settings: reads the settings again on SIGHUP; None without a settings file.
        shown_settings: the settings of the process, without secrets, for administrators.
    """

    http: HttpConfig
    listening: ListenAddress
    tls: ssl.SSLContext | None
    read_credentials: Callable[[], Credentials]
    print_line: Callable[[str], None]
    cluster: Cluster
    spec: ReplicaSpec
    has_versions: bool
    autoscaler: AutoscalerConfig
    upstream: UpstreamConfig
    signals: Signals | None = None
    start_seconds: float = 1800.0
    unresponsive_seconds: float = 60.0
    read_settings: Callable[[], ReloadedSettings] | None = None
    shown_settings: Mapping[str, Any] = field(default_factory=dict)


def run(parts: AutoscalerParts) -> int:
    """Scale until a signal; replicas run on. Returns the exit code. Raises ConfigError."""
    return run_process(ProcessParts(
        config=parts.http, listening=parts.listening, tls=parts.tls, read_credentials=parts.read_credentials,
        make_service=lambda credentials, drain: AutoscalerService(parts, credentials, drain),
        print_line=parts.print_line, read_settings=parts.read_settings,
    ))  # fmt: skip


class AutoscalerService:
    """An HttpService: the autoscaler with the routes by which it is watched.

    Attributes:
        app: the application with its routes.
        lifecycle: the state of start and shutdown.
        controller: the autoscaler.
    """

    def __init__(self, parts: AutoscalerParts, credentials: Credentials, drain: Drain) -> None:
        self._parts, self._metrics = parts, Metrics(AUTOSCALER_METRICS)
        clock, self.lifecycle, self._upstream = SystemClock(), Lifecycle(), Upstream(parts.upstream)
        self._session = self._upstream.make_probe_session()
        config = parts.autoscaler
        self._actuator = PoolActuator(
            parts.cluster, UnroutedPool(parts.signals), LoadReader(self._session, self._upstream.key_headers),
            parts.spec,
            PoolLimits(
                max_replicas=config.max_replicas, budget=config.budget, has_versions=parts.has_versions,
                is_dry_run=config.is_dry_run,
            ),
            clock,
            tracker=ReplicaTracker(unresponsive_seconds=parts.unresponsive_seconds, start_seconds=parts.start_seconds),
        )  # fmt: skip
        self.controller = Controller(self._actuator, config, clock)
        self._writer = AutoscalerMetrics(self._metrics)
        lifecycle = self.lifecycle
        routes: list[RouteEntry] = [
            ("GET", "/livez", lifecycle.livez),
            ("GET", "/readyz", lifecycle.readyz),
            ("GET", "/health", lifecycle.health),
            ("GET", "/metrics", self._send_metrics),
            ("GET", "/admin/autoscaler", self._send_status),
            ("GET", "/admin/debug", self._send_debug_report),
        ]  # fmt: skip
        self.app = HttpApp(
            parts.http, credentials, routes, self._not_found, lifecycle=lifecycle,
            admission=AdmissionController(parts.http.admission, clock), generation_paths=(),
            on_response=self.record_response, host=parts.listening.host,
        )  # fmt: skip

    @property
    def open_requests(self) -> int:
        """Always 0: no request takes long."""
        return 0

    @property
    def failure(self) -> str:
        """Always "": a cluster that is down is asked again."""
        return ""

    def record_response(self, record: AccessRecord) -> None:
        """Count nothing."""

    def background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Yield what runs until the process ends."""
        yield self._actuator.watch()
        yield self.controller.run()
        yield self._update_gauges()

    async def start(self) -> Iterable[tuple[str, object]]:
        """Ask the cluster for its replicas; returns what is known. Raises ClusterFailed."""
        replicas = await self._parts.cluster.list()
        self.lifecycle.mark_started(lambda: ReplicaState.READY)
        config = self._parts.autoscaler
        bounds = f"{config.min_replicas} to {config.max_replicas}"
        return ("replicas", len(replicas)), ("bounds", bounds), ("dry run", "yes" if config.is_dry_run else "no")

    def mark_ready(self, url: str) -> None:
        """Do nothing: autoscalers are not registered."""

    async def begin_drain(self) -> None:
        """Change nothing any more."""
        self._actuator.pause()

    def abort_all(self) -> int:
        """Return 0: there is nothing to abort."""
        return 0

    def reload(self, config: HttpConfig | None) -> None:
        """Read the replicas' key and certificates again."""
        self._upstream.reload()

    async def close(self) -> None:
        """Close the connections; replicas run on."""
        await self._parts.cluster.close()
        await self._session.close()
        if self._parts.signals is not None:
            await self._parts.signals.close()
        await self._upstream.close()

    async def _update_gauges(self) -> None:
        while True:
            self._writer.update(self.controller.status.values())
            await asyncio.sleep(GAUGE_SECONDS)

    async def _send_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, self._metrics.render(), kind=CONTENT_TYPE.encode())

    async def _send_status(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self.controller.status.as_json()
        await send_object(send, {"replicas": self._actuator.replicas(), "autoscaler": status})

    async def _send_debug_report(self, scope: Scope, receive: Receive, send: Send) -> None:
        lifecycle = self.lifecycle
        report = await asyncio.to_thread(
            process_report, "autoscaler", lifecycle.age, self._parts.shown_settings
        )  # fmt: skip
        report |= {"state": lifecycle.state, "reason": lifecycle.reason, "replicas": self._actuator.replicas()}
        await send_object(send, plain_value(report | {"autoscaler": self.controller.status.as_json()}))

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotFound(f"there is no route {scope['path'][:200]!r}")
