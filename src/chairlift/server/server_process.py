"""run: runs the server process of one replica, whose engine is started in a thread."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.cpu_affinity_and_priority import pin_process, usable_cpus
from chairlift.core.load_report import ReplicaState
from chairlift.llm.text_service import TextService
from chairlift.observability.tracing.tracer import Tracer
from chairlift.server.app import server_app
from chairlift.server.config import ServerConfig
from chairlift.server.registration_interface import NOTICE_SECONDS, Registration
from chairlift.server.replica import Replica
from chairlift.server.stats_log import StatsLog
from chairlift.web.access_log import AccessRecord
from chairlift.web.auth.credentials import Credentials
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.http_process import Drain, ProcessParts, ReloadedSettings
from chairlift.web.service.http_process import run as run_process
from chairlift.web.service.listen_address import ListenAddress

HANDOVER_POLL_SECONDS = 0.05
LONGEST_SLEEP_SECONDS = 1e6
"""Longest sleep; an event loop accepts no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts that a server process is built from.

    Attributes:
        config: the API server's settings.
        listening: the listen address.
        tls: the context with its TLS files, into which a reload loads them again; None without TLS.
        read_credentials: reads the keys, again on SIGHUP; raises ConfigError.
        start: loads the model and starts its engine; blocks, and raises ChairliftError.
        engine_pid: returns the pid of the engine's process, None where the engine runs in this one.
        budget: most tokens of a step.
        max_running: most requests that run at once.
        print_line: prints a line for people.
        read_settings: reads the settings again on SIGHUP; raises ConfigError. None without a settings file.
        registration: the replica's entry in a registry; None without one.
        tracer: traces requests; None traces none.
        shown_settings: the settings of the process, without secrets, for administrators.
    """

    config: ServerConfig
    listening: ListenAddress
    tls: ssl.SSLContext | None
    read_credentials: Callable[[], Credentials]
    start: Callable[[], TextService]
    engine_pid: Callable[[TextService], int | None]
    budget: int
    max_running: int
    print_line: Callable[[str], None]
    read_settings: Callable[[], ReloadedSettings] | None = None
    registration: Registration | None = None
    tracer: Tracer | None = None
    shown_settings: Mapping[str, Any] = field(default_factory=dict)


def run(parts: ServerParts) -> int:
    """Serve until a signal or a drain; return the exit code. Raises ConfigError, and what `start` raises."""
    return run_process(ProcessParts(
        config=parts.config.http, listening=parts.listening, tls=parts.tls,
        read_credentials=parts.read_credentials,
        make_service=lambda credentials, drain: ReplicaService(parts, credentials, drain),
        print_line=parts.print_line, read_settings=parts.read_settings,
    ))  # fmt: skip


class ReplicaService:
    """An HttpService: one replica, which is ready when its engine is.

    Attributes:
        app: the application with its routes.
        replica: the state that all routes share.
    """

    def __init__(self, parts: ServerParts, credentials: Credentials, drain: Drain) -> None:
        self._parts = parts
        self.replica = Replica(parts.config, parts.tracer, parts.shown_settings)
        self.app: HttpApp = server_app(
            self.replica, credentials, drain, parts.listening.host, is_loopback=parts.listening.is_loopback
        )
        self._update_certificate_expiry()
        self._starting: asyncio.Task[TextService] | None = None
        self._handing_over: asyncio.Task[None] | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """The state of start and shutdown."""
        return self.replica.lifecycle

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return self.replica.admission.open_requests

    @property
    def failure(self) -> str:
        """Why the replica can never serve again; "" while it can."""
        if self.replica.service.client.state is ReplicaState.DEAD:
            return "the engine failed and is not restarted again, so the server exits"
        return ""

    def record_response(self, record: AccessRecord) -> None:
        """Count a response."""
        self.replica.telemetry.record_response(record)

    def background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Yield what runs until the process ends."""
        yield self.replica.update_gauges_forever()
        if (interval := self._parts.config.http.log_stats_interval) > 0:
            yield StatsLog(self.replica.telemetry, self.replica.admission).run(interval, self._parts.print_line)

    async def start(self) -> Iterable[tuple[str, object]]:
        """Start the engine; returns its report. Raises ChairliftError."""
        parts = self._parts
        self._starting = asyncio.create_task(asyncio.to_thread(parts.start))
        service = await asyncio.shield(self._starting)
        self.replica.attach_service(service, lambda: parts.engine_pid(service), parts.budget, parts.max_running)
        if parts.engine_pid(service) is not None:  # else the engine's threads belong to this process
            self._avoid_engine_cpus(service.client.info.busy_cpus)
        return service.client.info.startup_report

    def mark_ready(self, url: str) -> None:
        """Register the replica."""
        if self._parts.registration is not None:
            self._parts.registration.start(url)

    async def begin_drain(self) -> None:
        """Leave the registry, and hand requests over that a router can resume elsewhere after `drain_handover` s."""
        if self._parts.registration is not None:
            await self._parts.registration.stop()
            await asyncio.sleep(NOTICE_SECONDS)
        self._handing_over = asyncio.create_task(self._hand_over_forever())

    async def _hand_over_forever(self) -> None:
        """Abort the requests that their router resumes on another replica; their streams end with an error event."""
        await asyncio.sleep(min(self._parts.config.drain_handover, LONGEST_SLEEP_SECONDS))
        while True:
            if request_ids := self.replica.handover.take_all():
                self._parts.print_line(f"handed over {len(request_ids)} requests")
                await self.replica.llm.abort(request_ids)
            await asyncio.sleep(HANDOVER_POLL_SECONDS)

    def abort_all(self) -> int:
        """Abort all open requests; returns their number."""
        return self.replica.llm.abort_all()

    def reload(self, config: HttpConfig | None) -> None:
        """Apply new limits; the certificates have been loaded again before."""
        self._update_certificate_expiry()
        if config is not None:
            self.replica.reload_limits(config)

    async def close(self) -> None:
        """Leave the registry; release the threads, and the engine of a cancelled start once it has started."""
        if self._starting is not None and not self._starting.done():
            self._starting.add_done_callback(_close_late)
        if self._handing_over is not None:
            self._handing_over.cancel()
        if self._parts.registration is not None:
            await self._parts.registration.stop()
        await self.replica.close()

    def _update_certificate_expiry(self) -> None:
        self.replica.telemetry.record_certificate_expiry(self._parts.listening.certificate_expiry())

    def _avoid_engine_cpus(self, cpus: Iterable[int]) -> None:
        """Pin this process to the other CPUs, if any: an engine thread that waits for a CPU delays every step."""
        own = usable_cpus()
        if (left := own - frozenset(cpus)) and left != own and pin_process(left):
            self._parts.print_line(f"  {'CPUs of the API server':<26} {', '.join(map(str, sorted(left)))}")


def _close_late(starting: "asyncio.Task[TextService]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().client.close()
