"""run: runs one replica's server process from binding its socket to its exit.

socket ──> http (responds 503, /livez 200) ──> engine, started in a thread ──> ready
SIGTERM or SIGINT ──> draining: no new requests; open ones may finish, then are aborted ──> stopped
second SIGTERM or SIGINT ──> stopped at once        SIGHUP ──> keys, certificates and limits are read again
"""

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from chairlift.core.cpu_affinity import pin_process, usable_cpus
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.core.load_report import ReplicaState
from chairlift.llm.text_service import TextService
from chairlift.observability.logging import LogConfig, set_levels
from chairlift.server.app import ServerApp
from chairlift.server.config import ServerConfig
from chairlift.server.malloc_tuning import limit_malloc_arenas
from chairlift.server.replica import Replica
from chairlift.server.stats_log import StatsLog
from chairlift.server.tls_files import load_certificate, load_client_ca
from chairlift.web.auth.credentials import Credentials
from chairlift.web.http_protocol import bounded_protocol

log = logging.getLogger(__name__)

BACKLOG = 2048
ACCEPTS_PER_ITERATION = 32
"""Connections accepted in one iteration of the event loop; uvloop accepts one an iteration from each listening socket.
With one, new connections wait for hundreds of milliseconds at a thousand requests a second (ADR 0017)."""

SEND_BUFFER = 65_536
"""Bytes that the system buffers for a client that does not read; its default would be megabytes."""

ABORT_SECONDS = 5.0
"""Seconds that aborted requests have to send their errors."""

POLL_SECONDS = 0.05
LONGEST_IDLE = 1e6
"""Longest idle timeout in seconds; uvicorn accepts no infinity."""

SWITCH_SECONDS = 0.0005
"""Seconds for which another thread may keep the GIL while the event loop waits for it, at each new message."""

GARBAGE_THRESHOLD = 50_000
"""New objects after which the garbage collector looks for cycles. Serving requests creates few cycles, and with
Python's 700 the collector takes up to a tenth of the time."""

_Address = tuple[Any, Any, int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address and the TLS files with which a server listens.

    Attributes:
        host: an address or a name of this machine.
        port: 0 for any free port.
        certificate: PEM file of a certificate chain; with it and its key the server uses TLS.
        key: PEM file of the certificate's private key.
        client_ca: PEM file of the CAs that sign client certificates; with it every client needs one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def bind(self) -> socket.socket:
        """Bind the port and return the listening socket. Raises ConfigError when that fails."""
        *socket_type, _, address = self._addresses()[0]
        listener = socket.socket(*socket_type)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
            listener.bind(address)
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {reason}", option="port") from None
        listener.setblocking(False)
        return listener

    def load_tls_files(self, context: ssl.SSLContext) -> None:
        """Load the TLS files into a context. Raises ConfigError, and the context is unchanged then."""
        if self.certificate is not None and self.key is not None:
            if self.client_ca is not None:
                load_client_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.client_ca)
            load_certificate(context, self.certificate, self.key)
            if self.client_ca is not None:
                load_client_ca(context, self.client_ca)  # adds CAs; those that it had stay trusted

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context with the TLS files, None for a server without TLS. Raises ConfigError."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        self.load_tls_files(context)
        return context

    def url(self, listener: socket.socket) -> str:
        """Return the server's URL."""
        host, port = listener.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address. Raises ConfigError for a name that does not resolve."""
        return all(str(each[4][0]).startswith("127.") or each[4][0] == "::1" for each in self._addresses())

    def _addresses(self) -> list[_Address]:
        try:
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot resolve the host {self.host!r}: {reason}", option="host") from None


class _Http(uvicorn.Server):
    """uvicorn's server without its signal handlers; _Server has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadedSettings:
    """Settings that a reload has read.

    Attributes:
        config: the API server's settings, whose limits are applied.
        log: the new log levels.
    """

    config: ServerConfig
    log: LogConfig


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


def listeners(listener: socket.socket) -> list[socket.socket]:
    """Return the socket and duplicates of it; an iteration accepts one connection from each.

    Returns only the socket itself if the limit of open files allows no duplicates.
    """
    sockets = [listener]
    try:
        while len(sockets) < ACCEPTS_PER_ITERATION:
            sockets.append(listener.dup())
    except OSError:
        while len(sockets) > 1:
            sockets.pop().close()
    return sockets


def run(parts: ServerParts) -> int:
    """Serve until a signal or a drain; return the exit code. Raises ConfigError, and what `start` raises."""
    credentials = parts.read_credentials()
    limit_malloc_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(GARBAGE_THRESHOLD)
    with contextlib.closing(parts.listening.bind()) as listener:
        return uvloop.run(_Server(parts, credentials, listener).run())


class _Server:
    """Own the tasks and state of the event loop."""

    def __init__(self, parts: ServerParts, credentials: Credentials, listener: socket.socket) -> None:
        self._parts = parts
        self._socket = listener
        self._credentials = credentials
        self._started_at = time.monotonic()
        self._stop_requested = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._was_signalled = False

    async def run(self) -> int:
        """Serve; return the exit code."""
        self._replica = replica = Replica(self._parts.config)
        self._app = ServerApp(replica, self._credentials, self._drain, self._parts.listening.host)
        self._catch_signals()  # before the address is printed, after which a signal may come
        self._parts.print_line(f"listening on {self._parts.listening.url(self._socket)}")
        self._http = _Http(self._http_config())
        serving = asyncio.create_task(self._http.serve(listeners(self._socket)))
        watching = [asyncio.create_task(replica.update_gauges_forever())]
        if (interval := self._parts.config.log_stats_interval) > 0:
            stats_log = StatsLog(replica.telemetry, replica.admission)
            watching.append(asyncio.create_task(stats_log.run(interval, self._parts.print_line)))
        try:
            return await self._serve_until_stopped(serving)
        finally:
            for task in watching:
                task.cancel()
            self._http.should_exit = self._http.force_exit = True
            await asyncio.wait([serving, *watching])
            await replica.close()

    async def _serve_until_stopped(self, serving: "asyncio.Task[None]") -> int:
        starting = asyncio.create_task(asyncio.to_thread(self._parts.start))
        stopping = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            self._parts.print_line("stopped before the model was loaded")
            starting.add_done_callback(_close_late)
            stopping.cancel()
            return 0
        service = starting.result()
        self._replica.attach_service(
            service, lambda: self._parts.engine_pid(service), self._parts.budget, self._parts.max_running
        )
        if self._parts.engine_pid(service) is not None:  # else the engine's threads belong to this process
            self._avoid_engine_cpus(service.client.info.busy_cpus)
        gc.collect()
        gc.freeze()  # these objects stay until the exit: the collector need not visit them again
        for name, value in service.client.info.startup_report:
            self._parts.print_line(f"  {name:<26} {value}")
        url = self._parts.listening.url(self._socket)
        self._parts.print_line(f"ready after {time.monotonic() - self._started_at:.1f} s: {url}")
        while not stopping.done() and not serving.done():
            await asyncio.wait([stopping, serving], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if service.client.state is ReplicaState.DEAD:
                self._parts.print_line("the engine failed and is not restarted again, so the server exits")
                stopping.cancel()
                return 1
        await self._finish()
        return 0

    def _avoid_engine_cpus(self, cpus: Iterable[int]) -> None:
        """Pin this process to the other CPUs, if any: an engine thread that waits for a CPU delays every step."""
        own = usable_cpus()
        if (left := own - frozenset(cpus)) and left != own and pin_process(left):
            self._parts.print_line(f"  {'CPUs of the API server':<26} {', '.join(map(str, sorted(left)))}")

    async def _finish(self) -> None:
        """Wait until open requests finish or the drain timeout passes, then abort the rest."""
        replica, parts = self._replica, self._parts
        replica.lifecycle.drain()
        if replica.admission.open_requests:
            parts.print_line(
                f"draining: {replica.admission.open_requests} requests have {parts.config.drain_timeout:g} s to finish"
            )
        if not await self._wait_until_idle(parts.config.drain_timeout, unless=self._stop_now):
            parts.print_line(f"aborted {replica.llm.abort_all()} requests")
            await self._wait_until_idle(ABORT_SECONDS)
        parts.print_line("stopped")

    async def _wait_until_idle(self, seconds: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until no request is open; return False after `seconds`, or when `unless` is set."""
        until = time.monotonic() + seconds
        while self._replica.admission.open_requests:
            if time.monotonic() >= until or (unless is not None and unless.is_set()):
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    # -- signals ---------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_terminate)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)

    def _on_terminate(self) -> None:
        """Drain at the first signal and stop at the second; an operator's drain does not count."""
        if self._was_signalled:
            self._stop_now.set()
        self._was_signalled = True
        self._stop_requested.set()

    async def _drain(self) -> None:
        self._replica.lifecycle.drain()
        self._stop_requested.set()

    def _on_reload(self) -> None:
        """Read settings, keys and certificates again and apply them; if one cannot be read, all old ones stay."""
        try:
            reloaded = None if self._parts.read_settings is None else self._parts.read_settings()
            credentials = self._parts.read_credentials()
            self._load_certificate()
        except (ChairliftError, OSError) as error:
            log.error("the old keys, certificates and limits stay: %s", error)
            return
        except Exception:
            log.exception("the old keys, certificates and limits stay: internal error")
            return
        self._app.auth.credentials = credentials
        if reloaded is not None:
            self._replica.reload_limits(reloaded.config)
            set_levels(reloaded.log)
        log.warning(
            "%s were read again", "keys and certificates" if reloaded is None else "keys, certificates and limits"
        )

    # -- uvicorn ---------------------------------------------------------------------------------------------------

    def _http_config(self) -> uvicorn.Config:
        config = self._parts.config
        on_response, early_check = self._replica.telemetry.record_response, self._app.early_check
        http = uvicorn.Config(
            self._app.app, http=bounded_protocol(config.head, config.write_timeout, on_response, early_check),
            ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=math.ceil(min(config.idle_timeout, LONGEST_IDLE)),
            interface="asgi3",
            backlog=BACKLOG, proxy_headers=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        http.load()
        http.ssl = self._parts.tls
        return http

    def _load_certificate(self) -> None:
        if self._parts.tls is not None:
            self._parts.listening.load_tls_files(self._parts.tls)


def _close_late(starting: "asyncio.Task[TextService]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().client.close()
