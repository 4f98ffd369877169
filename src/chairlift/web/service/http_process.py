"""run: runs one HTTP service's process from binding its socket to its exit.

socket ──> http (responds 503, /livez 200) ──> the service starts ──> ready
SIGTERM or SIGINT ──> draining: no new requests; open ones may finish, then are aborted ──> stopped
second SIGTERM or SIGINT ──> stopped at once        SIGHUP ──> keys, certificates and limits are read again
a background task fails ──> an internal error: logged, drained as above, exit code 1, for a supervisor to start it again
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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
import uvloop

from chairlift.core.errors import ChairliftError
from chairlift.observability.logging import LogConfig, set_levels
from chairlift.web.access_log import AccessRecord
from chairlift.web.auth.credentials import Credentials
from chairlift.web.bounded_http_protocol import bounded_protocol
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.service.early_sighup import take_reload
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.listen_address import BACKLOG, ListenAddress, listeners
from chairlift.web.service.malloc_tuning import limit_malloc_arenas

log = logging.getLogger(__name__)

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

Drain = Callable[[], Awaitable[None]]
"""Starts the shutdown and returns at once."""


class HttpService(Protocol):
    """What a process serves. Belongs to one event loop."""

    @property
    def app(self) -> HttpApp:
        """The application with its routes."""
        ...

    @property
    def lifecycle(self) -> Lifecycle:
        """The state of start and shutdown."""
        ...

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        ...

    @property
    def failure(self) -> str:
        """Why the service can never serve again, for people; "" while it can."""
        ...

    def record_response(self, record: AccessRecord) -> None:
        """Count a response."""
        ...

    def background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs until the process ends."""
        ...

    async def start(self) -> Iterable[tuple[str, object]]:
        """Become ready; returns names and values to print. Raises ChairliftError. May be cancelled."""
        ...

    def mark_ready(self, url: str) -> None:
        """Note that the service is ready at this URL."""
        ...

    async def begin_drain(self) -> None:
        """Act at the start of the shutdown, while requests are still accepted. May be cancelled."""
        ...

    def abort_all(self) -> int:
        """Abort all open requests; returns their number."""
        ...

    def reload(self, config: HttpConfig | None) -> None:
        """Apply new limits, if any, and read files again."""
        ...

    async def close(self) -> None:
        """Release what the service holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadedSettings:
    """Settings that a reload has read.

    Attributes:
        config: the HTTP settings, whose limits are applied.
        log: the new log levels.
    """

    config: HttpConfig
    log: LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """The parts that the process of an HTTP service is built from.

    Attributes:
        config: the HTTP settings.
        listening: the listen address.
        tls: the context with its TLS files, into which a reload loads them again; None without TLS.
        read_credentials: reads the keys, again on SIGHUP; raises ConfigError.
        make_service: makes the service, in the event loop.
        print_line: prints a line for people.
        read_settings: reads the settings again on SIGHUP; raises ConfigError. None without a settings file.
    """

    config: HttpConfig
    listening: ListenAddress
    tls: ssl.SSLContext | None
    read_credentials: Callable[[], Credentials]
    make_service: Callable[[Credentials, Drain], HttpService]
    print_line: Callable[[str], None]
    read_settings: Callable[[], ReloadedSettings] | None = None


def run(parts: ProcessParts) -> int:
    """Serve until a signal or a drain; return the exit code. Raises ConfigError, and what the start raises."""
    credentials = parts.read_credentials()
    limit_malloc_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(GARBAGE_THRESHOLD)
    with contextlib.closing(parts.listening.bind()) as listener:
        return uvloop.run(_Process(parts, credentials, listener).run())


class _Http(uvicorn.Server):
    """uvicorn's server without its signal handlers; _Process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """Own the tasks and state of the event loop."""

    def __init__(self, parts: ProcessParts, credentials: Credentials, listener: socket.socket) -> None:
        self._parts = parts
        self._socket = listener
        self._credentials = credentials
        self._started_at = time.monotonic()
        self._stop_requested = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._was_signalled = False

    async def run(self) -> int:
        """Serve; return the exit code."""
        self._service = service = self._parts.make_service(self._credentials, self._drain)
        self._catch_signals()  # before the address is printed, after which a signal may come
        self._parts.print_line(f"listening on {self._parts.listening.url(self._socket)}")
        self._http = _Http(self._http_config())
        serving = asyncio.create_task(self._http.serve(listeners(self._socket)))
        self._background = watching = [asyncio.create_task(each) for each in service.background()]
        if service.app.batches is not None:
            watching.append(asyncio.create_task(service.app.batches.resume()))
        try:
            return await self._serve_until_stopped(serving)
        finally:
            for task in watching:
                task.cancel()
            if (feed := service.app.live_feed) is not None:
                await feed.close()
            if (batches := service.app.batches) is not None:
                await batches.close()
            self._http.should_exit = self._http.force_exit = True
            await asyncio.wait([serving, *watching])
            await service.close()

    async def _serve_until_stopped(self, serving: "asyncio.Task[None]") -> int:
        service, print_line = self._service, self._parts.print_line
        starting = asyncio.ensure_future(service.start())
        stopping = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            print_line("stopped before the start was complete")
            starting.cancel()
            stopping.cancel()
            return 0
        report = starting.result()
        gc.collect()
        gc.freeze()  # these objects stay until the exit: the collector need not visit them again
        for name, value in report:
            print_line(f"  {name:<26} {value}")
        url = self._parts.listening.url(self._socket)
        print_line(f"ready after {time.monotonic() - self._started_at:.1f} s: {url}")
        service.mark_ready(url)
        has_failed = False
        while not stopping.done() and not serving.done():
            await asyncio.wait([stopping, serving], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if failure := service.failure:
                print_line(failure)
                stopping.cancel()
                return 1
            if has_failed := self._has_failed_task():
                stopping.cancel()
                break
        await self._finish()
        return int(has_failed)

    def _has_failed_task(self) -> bool:
        """Return whether a background task has failed; it would not run again in this process."""
        for task in self._background:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                name = getattr(task.get_coro(), "__qualname__", task.get_name())
                log.error("internal error: %s has failed in the background, so the process ends", name, exc_info=error)
                return True
        return False

    async def _finish(self) -> None:
        """Wait until open requests finish or the drain timeout passes, then abort the rest."""
        service, parts, seconds = self._service, self._parts, self._parts.config.drain_timeout
        if (batches := service.app.batches) is not None:
            batches.stop()
        await self._unless_stopped(service.begin_drain())
        service.lifecycle.drain()
        if service.open_requests:
            parts.print_line(f"draining: {service.open_requests} requests have {seconds:g} s to finish")
        if not await self._wait_until_idle(seconds, unless=self._stop_now):
            if batches is not None:
                batches.abort_all()
            parts.print_line(f"aborted {service.abort_all()} requests")
            await self._wait_until_idle(ABORT_SECONDS)
        parts.print_line("stopped")

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for some work, but not after a second signal."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop_now.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            working.result()
        working.cancel()

    async def _wait_until_idle(self, seconds: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until no request is open; return False after `seconds`, or when `unless` is set."""
        until = time.monotonic() + seconds
        while self._service.open_requests:
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
        if take_reload():  # it came during the start
            loop.call_soon(self._on_reload)

    def _on_terminate(self) -> None:
        """Drain at the first signal and stop at the second; an operator's drain does not count."""
        if self._was_signalled:
            self._stop_now.set()
        self._was_signalled = True
        self._stop_requested.set()

    async def _drain(self) -> None:
        self._service.lifecycle.drain()
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
        self._service.app.auth.credentials = credentials
        self._service.reload(None if reloaded is None else reloaded.config)
        if reloaded is not None:
            set_levels(reloaded.log)
        log.warning(
            "%s were read again", "keys and certificates" if reloaded is None else "keys, certificates and limits"
        )

    # -- uvicorn ---------------------------------------------------------------------------------------------------

    def _http_config(self) -> uvicorn.Config:
        config = self._parts.config
        on_response, app = self._service.record_response, self._service.app
        http = uvicorn.Config(
            app.asgi, http=bounded_protocol(config.head, config.write_timeout, on_response, app.early_check),
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
