"""run: runs the process of a router, which is ready when its sources have answered and its replicas were probed."""

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.observability.tracing.tracer import Tracer
from chairlift.router.app import router_app
from chairlift.router.config import RouterConfig
from chairlift.router.discovery.base import DiscoverySource
from chairlift.router.discovery.discovery import Discovery
from chairlift.router.endpoint import Endpoint
from chairlift.router.extension import RouterExtension
from chairlift.router.health.ejection_sharer import EjectionSharer
from chairlift.router.health.health_metrics import HealthMetrics
from chairlift.router.health.prober import ReplicaProber
from chairlift.router.health.webhook_notifier import WebhookNotifier, webhook_session
from chairlift.router.router import Router
from chairlift.router.shared_state.base import SharedEjection
from chairlift.web.access_log import AccessRecord
from chairlift.web.auth.credentials import Credentials
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.http_process import Drain, ProcessParts, ReloadedSettings
from chairlift.web.service.http_process import run as run_process
from chairlift.web.service.listen_address import ListenAddress

START_SECONDS = 5.0
"""Seconds to wait at the start for the sources' first answers and a replica that is ready; then the router listens on,
and answers 503 until there is one."""

GAUGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterParts:
    """The parts that a router's process is built from.

    Attributes:
        config: the router's settings.
        sources: where replicas are found.
        listening: the listen address.
        tls: the context with its TLS files, into which a reload loads them again; None without TLS.
        read_credentials: reads the keys, again on SIGHUP; raises ConfigError.
        print_line: prints a line for people.
        read_settings: reads the settings again on SIGHUP; raises ConfigError. None without a settings file.
        tracer: traces requests; None traces none.
        shown_settings: the settings of the process, without secrets, for administrators.
    """

    config: RouterConfig
    sources: Sequence[DiscoverySource]
    listening: ListenAddress
    tls: ssl.SSLContext | None
    read_credentials: Callable[[], Credentials]
    print_line: Callable[[str], None]
    read_settings: Callable[[], ReloadedSettings] | None = None
    tracer: Tracer | None = None
    shown_settings: Mapping[str, Any] = field(default_factory=dict)


def run(parts: RouterParts) -> int:
    """Route until a signal or a drain; return the exit code. Raises ConfigError."""
    return run_process(ProcessParts(
        config=parts.config.http, listening=parts.listening, tls=parts.tls,
        read_credentials=parts.read_credentials,
        make_service=lambda credentials, drain: RouterService(parts, credentials, drain),
        print_line=parts.print_line, read_settings=parts.read_settings,
    ))  # fmt: skip


class RouterService:
    """An HttpService: the router with its discovery and its probes.

    Attributes:
        app: the application with its routes.
        router: the state that all routes share.
    """

    def __init__(
        self, parts: RouterParts, credentials: Credentials, drain: Drain, *,
        extension: RouterExtension | None = None,
    ) -> None:  # fmt: skip
        extension = extension or RouterExtension()
        self._parts = parts
        self.router = router = Router(parts.config, more_metrics=extension.metrics, tracer=parts.tracer)
        router.shown_settings = parts.shown_settings
        self.app: HttpApp = router_app(
            router, credentials, drain, parts.listening.host, extension, is_loopback=parts.listening.is_loopback
        )
        self._update_certificate_expiry()
        clock, rng = router.clock, random.Random()
        self._discovery = Discovery(
            parts.sources,
            self._on_endpoints,
            rng=rng,
            clock=clock,
            empty_grace_seconds=parts.config.empty_grace_seconds,
        )
        router.source_statuses = self._discovery.statuses
        self._probe_session = router.upstream.make_probe_session()
        self._prober = ReplicaProber(
            router.replicas, self._probe_session, clock,
            timeout_seconds=parts.config.health.probes.timeout_seconds,
            headers_of=lambda endpoint: router.upstream.key_headers(),
        )  # fmt: skip
        notify = parts.config.notify
        self._notifier = None if notify is None else WebhookNotifier(notify, webhook_session())
        self._health_metrics = HealthMetrics(router.telemetry.metrics, router.replicas, self._prober, self._notifier)
        sharer = EjectionSharer(router.shared_state.ejections)
        router.replicas.listeners += [self._health_metrics, sharer]
        router.replicas.restart_listeners.append(self._health_metrics.on_restart)
        router.shared_state.ejections.add_listener(self._on_shared_ejection)
        if self._notifier is not None:
            router.replicas.listeners.append(self._notifier)

    @property
    def lifecycle(self) -> Lifecycle:
        """The state of start and shutdown."""
        return self.router.lifecycle

    @property
    def needs_replica(self) -> bool:
        """Whether the start waits for a replica that is ready."""
        return True

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return self.router.num_open_requests

    @property
    def failure(self) -> str:
        """Always "": a router without replicas waits for some."""
        return ""

    def record_response(self, record: AccessRecord) -> None:
        """Count a response."""
        self.router.telemetry.record_response(record)

    def background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Yield what runs until the process ends."""
        yield self._discovery.run()
        yield self._prober.run()
        yield self._update_gauges_forever()
        if self._notifier is not None:
            yield self._notifier.run()

    async def start(self) -> Iterable[tuple[str, object]]:
        """Wait for the first answers of sources and replicas; returns what is known."""
        router = self.router
        await router.shared_state.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._discovery.wait_complete()
                while self.needs_replica and not router.is_ready:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        router.mark_started()
        replicas: object = len(router.replicas.endpoints)
        if not router.is_ready:
            hold = self._parts.config.hold_timeout
            what = f"requests wait for one up to {hold:g} s" if hold else "requests are rejected until one is"
            replicas = f"{replicas}, none of them is ready: {what}"
        models = ", ".join(router.model_names()) or "none yet"
        return ("replicas", replicas), ("models", models), ("policy", self._parts.config.policy)

    def mark_ready(self, url: str) -> None:
        """Do nothing: routers are not registered."""

    async def begin_drain(self) -> None:
        """Do nothing: open requests go on."""

    def abort_all(self) -> int:
        """Abort all open requests; returns their number."""
        return self.router.abort_all()

    def reload(self, config: HttpConfig | None) -> None:
        """Apply new limits, and read the sources' files and the replicas' key again."""
        self._update_certificate_expiry()
        self._discovery.reload()
        self.router.upstream.reload()
        if config is not None:
            self.router.reload_limits(config)

    async def close(self) -> None:
        """Close the connections."""
        await self._probe_session.close()
        if self._notifier is not None:
            await self._notifier.close()
        await self.router.close()

    def _on_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self.router.replicas.update(endpoints, self.router.clock.now())

    def _on_shared_ejection(self, ejection: SharedEjection) -> None:
        """Eject a replica that another router has ejected, or take it back with that one."""
        replicas, now = self.router.replicas, self.router.clock.now()
        if (seconds := ejection.until - now) > 0:
            replicas.eject_by_other_router(ejection.replica_id, seconds, ejection.reason, now)
        else:
            replicas.return_by_other_router(ejection.replica_id, now)

    def _update_certificate_expiry(self) -> None:
        self.router.telemetry.record_certificate_expiry(self._parts.listening.certificate_expiry())

    def update_gauges(self) -> None:
        """Set the gauges of requests and replicas."""
        self.router.update_gauges()
        self._health_metrics.update()

    async def _update_gauges_forever(self) -> None:
        while True:
            self.update_gauges()
            await asyncio.sleep(GAUGE_SECONDS)
