"""Run: one replica's process, from its socket to its last goodbye.

socket ──> http (answers 503, /livez 200) ──> engine, in a thread ──> ready
SIGTERM or SIGINT ──> draining: nothing new, what is open has its time, then it is aborted ──> gone
the second one ──> gone now            SIGHUP ──> keys, certificates and limits are read again
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
from chairlift.llm.text_service import Service
from chairlift.observability.logging import LogConfig, set_levels
from chairlift.server.app import Door
from chairlift.server.config import ServerConfig
from chairlift.server.malloc_tuning import share_arenas
from chairlift.server.replica import Replica
from chairlift.web.auth import KeyRing
from chairlift.web.http_protocol import bounded_protocol

log = logging.getLogger(__name__)

BACKLOG = 2048
ACCEPTS = 32
"""Connections that are accepted in one turn of the event loop; uvloop takes one a turn of each socket that listens.
With one, new connections wait for hundreds of milliseconds where a thousand requests a second come (ADR 0017)."""

SEND_BUFFER = 65_536
"""Bytes that the system keeps for a client that does not read; it would take megabytes by itself."""

ABORT_SECONDS = 5.0
"""That aborted requests have to say so."""

POLL_SECONDS = 0.05
LONGEST_IDLE = 1e6
"""Seconds; uvicorn takes no infinity."""

SWITCH_SECONDS = 0.0005
"""How long another thread may keep Python's lock while the event loop wants it: it asks for it at each new message."""

GARBAGE_THRESHOLD = 50_000
"""New objects after which those that hold each other are looked for; what serves requests makes few such circles, and
with Python's 700 that search takes up to a tenth of the time."""

_Address = tuple[Any, Any, int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens.

    Attributes:
        host: an address or a name of this machine.
        port: 0 for any that is free.
        certificate: PEM file of a certificate chain; with its key the server speaks TLS.
        key: PEM file.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    def bind(self) -> socket.socket:
        """Take the port. Raises ConfigError when that cannot be."""
        family, kind, protocol, _, address = self._addresses()[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of each connection, too
            taken.bind(address)
            taken.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            taken.close()
            said = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {said}", option="port") from None
        taken.setblocking(False)
        return taken

    def url(self, taken: socket.socket) -> str:
        """Return the address for people."""
        host, port = taken.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Raises ConfigError for a name that nobody knows."""
        return all(str(each[4][0]).startswith("127.") or each[4][0] == "::1" for each in self._addresses())

    def _addresses(self) -> list[_Address]:
        try:
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise ConfigError(f"there is no address {self.host!r}: {said}", option="host") from None


class _Http(uvicorn.Server):
    """uvicorn's server; signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Settings that were read again.

    Attributes:
        config: of the door, whose limits are taken over.
        log: how much is logged from now on.
    """

    config: ServerConfig
    log: LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a replica is put together of.

    Attributes:
        config: of the door.
        listening: where.
        read_keys: reads the keys, again on SIGHUP; raises ConfigError.
        start: loads the model and starts its engine; blocks, and raises ChairliftError.
        engine_pid: of the engine's process, None where it has none.
        budget: tokens that a step may have.
        seats: requests that may be on board.
        say: tells people a line.
        read_settings: reads the settings again on SIGHUP; raises ConfigError. None where no file has any.
    """

    config: ServerConfig
    listening: Listening
    read_keys: Callable[[], KeyRing]
    start: Callable[[], Service]
    engine_pid: Callable[[Service], int | None]
    budget: int
    seats: int
    say: Callable[[str], None]
    read_settings: Callable[[], Renewed] | None = None


def listeners(taken: socket.socket) -> list[socket.socket]:
    """Return the socket and duplicates of it, for an event loop that accepts one connection a turn of each.

    There is only the one where the process may hardly have more files.
    """
    found = [taken]
    try:
        while len(found) < ACCEPTS:
            found.append(taken.dup())
    except OSError:
        while len(found) > 1:
            found.pop().close()
    return found


def run(parts: Parts) -> int:
    """Serve until it is told to leave; returns the exit code. Raises ConfigError, and what the start raises."""
    keys = parts.read_keys()
    listening = parts.listening
    share_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(GARBAGE_THRESHOLD)
    with contextlib.closing(listening.bind()) as taken:
        return uvloop.run(_Server(parts, keys, taken).run())


class _Server:
    """Everything that lives in the event loop."""

    def __init__(self, parts: Parts, keys: KeyRing, taken: socket.socket) -> None:
        self._parts = parts
        self._taken = taken
        self._keys = keys
        self._began = time.monotonic()
        self._leave = asyncio.Event()
        self._now = asyncio.Event()
        self._was_told = False

    async def run(self) -> int:
        """Serve; returns the exit code."""
        self._replica = replica = Replica(self._parts.config)
        self._door = Door(replica, self._keys, self._drain)
        self._catch_signals()  # before anybody is told where it listens, and so could send one
        self._parts.say(f"listening on {self._parts.listening.url(self._taken)}")
        self._http = _Http(self._http_config())
        serving = asyncio.create_task(self._http.serve(listeners(self._taken)))
        watching = asyncio.create_task(replica.watch())
        try:
            return await self._life(serving)
        finally:
            watching.cancel()
            self._http.should_exit = self._http.force_exit = True
            await asyncio.wait([serving, watching])
            await replica.close()

    async def _life(self, serving: "asyncio.Task[None]") -> int:
        starting = asyncio.create_task(asyncio.to_thread(self._parts.start))
        leaving = asyncio.create_task(self._leave.wait())
        await asyncio.wait([starting, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            self._parts.say("leaving before the model was loaded")
            starting.add_done_callback(_close_late)
            leaving.cancel()
            return 0
        service = starting.result()
        self._replica.serve(service, lambda: self._parts.engine_pid(service), self._parts.budget, self._parts.seats)
        if self._parts.engine_pid(service) is not None:  # else its threads are of this process
            self._keep_off(service.client.info.busy_cpus)
        gc.collect()
        gc.freeze()  # what is there now stays for good, and is not looked through again
        for name, value in service.client.info.startup_report:
            self._parts.say(f"  {name:<26} {value}")
        url = self._parts.listening.url(self._taken)
        self._parts.say(f"ready after {time.monotonic() - self._began:.1f} s: {url}")
        while not leaving.done() and not serving.done():
            await asyncio.wait([leaving, serving], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if service.client.state is ReplicaState.DEAD:
                self._parts.say("the engine has died for good, so the server leaves")
                leaving.cancel()
                return 1
        await self._finish()
        return 0

    def _keep_off(self, cpus: Iterable[int]) -> None:
        """Leave the engine its processors, where there are others: a thread of its that waits here holds up all."""
        own = usable_cpus()
        if (left := own - frozenset(cpus)) and left != own and pin_process(left):
            self._parts.say(f"  {'processors of this door':<26} {', '.join(map(str, sorted(left)))}")

    async def _finish(self) -> None:
        """Let what is open end by itself, then with an abort, then with the process."""
        replica, parts = self._replica, self._parts
        replica.lifecycle.drain()
        if replica.line.open_requests:
            parts.say(f"leaving: {replica.line.open_requests} requests have {parts.config.drain_seconds:g} s to finish")
        if not await self._emptied(parts.config.drain_seconds, unless=self._now):
            parts.say(f"{replica.llm.abort_all()} requests are aborted")
            await self._emptied(ABORT_SECONDS)
        parts.say("gone")

    async def _emptied(self, seconds: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until nothing is open; False when the time is over, or that event has come."""
        until = time.monotonic() + seconds
        while self._replica.line.open_requests:
            if time.monotonic() >= until or (unless is not None and unless.is_set()):
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    # -- signals ---------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_leave)
        loop.add_signal_handler(signal.SIGHUP, self._read_again)

    def _told_to_leave(self) -> None:
        """Leave; at the second signal now. A drain that an operator asked for is no signal."""
        if self._was_told:
            self._now.set()
        self._was_told = True
        self._leave.set()

    async def _drain(self) -> None:
        self._replica.lifecycle.drain()
        self._leave.set()

    def _read_again(self) -> None:
        """Take new settings, keys and certificates over; when one cannot be read, all the old ones stay."""
        try:
            renewed = None if self._parts.read_settings is None else self._parts.read_settings()
            ring = self._parts.read_keys()
            self._load_certificate()
        except (ChairliftError, OSError) as error:
            log.error("the old keys, certificates and limits stay: %s", error)
            return
        except Exception:
            log.exception("the old keys, certificates and limits stay: this is a mistake of ours")
            return
        self._door.auth.ring = ring
        if renewed is not None:
            self._replica.renew(renewed.config)
            set_levels(renewed.log)
        log.warning("keys, certificates%s were read again", "" if renewed is None else " and limits")

    # -- uvicorn ---------------------------------------------------------------------------------------------------

    def _http_config(self) -> uvicorn.Config:
        config, listening = self._parts.config, self._parts.listening
        seen, gate = self._replica.telemetry.answered, self._door.gate
        http = uvicorn.Config(
            self._door.app, http=bounded_protocol(config.head, config.write_seconds, seen, gate),
            ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=math.ceil(min(config.idle_seconds, LONGEST_IDLE)),
            interface="asgi3",
            ssl_certfile=listening.certificate, ssl_keyfile=listening.key, backlog=BACKLOG, proxy_headers=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        try:
            http.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificate cannot be used: {error}", option="tls_cert") from None
        self._ssl = http.ssl
        return http

    def _load_certificate(self) -> None:
        listening = self._parts.listening
        if self._ssl is not None and listening.certificate is not None:
            # A context takes a certificate over before it sees that the key is another's: tried out on one of its own.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listening.certificate, listening.key)
            self._ssl.load_cert_chain(listening.certificate, listening.key)


def _close_late(starting: "asyncio.Task[Service]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().client.close()
