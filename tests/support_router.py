"""Routers in tests: applications served in the test's own event loop, and replicas that follow a script."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from chairlift.observability.tracing.tracer import Tracer
from chairlift.router.app import router_app
from chairlift.router.config import RouterConfig
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.router import Router
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.credentials import Credentials
from chairlift.web.body import App

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class PromptServer(uvicorn.Server):
    """A server that ends at once: uvicorn's own looks every 0.1 s, and waits as long for connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[str]:
    """Serve an application on a free port of this machine; yields its URL."""
    server = PromptServer(uvicorn.Config(
        app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1,
        interface="asgi3",
    ))  # fmt: skip
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.ended.set()
        await task


@dataclass(slots=True)
class ReceivedRequest:
    """One request that a scripted replica has received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]


class Connection:
    """What a script does with one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def head(self, status: int = 200, **headers: str) -> None:
        """Send a head; the body follows in chunks."""
        lines = [f"HTTP/1.1 {status} Status", "transfer-encoding: chunked", *(
            f"{name.replace('_', '-')}: {value}" for name, value in headers.items()
        )]  # fmt: skip
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self._writer.drain()

    async def stream_head(self, **headers: str) -> None:
        await self.head(200, content_type="text/event-stream; charset=utf-8", **headers)

    async def piece(self, data: bytes) -> None:
        """Send a piece of the body."""
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        """End the body."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def respond(self, body: Any, status: int = 200, **headers: str) -> None:
        """Send a whole JSON response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(data)}", "content-type: application/json", *(
            f"{name.replace('_', '-')}: {value}" for name, value in headers.items()
        )]  # fmt: skip
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def close(self) -> None:
        """End the connection when all is sent."""
        self._writer.close()

    @property
    def port(self) -> int:
        """The router's port, which tells its connections apart."""
        return int(self._writer.get_extra_info("peername")[1])

    def reset(self) -> None:
        """Cut the connection at once."""
        self._writer.transport.abort()


Script = Callable[[Connection, ReceivedRequest], Awaitable[None]]


@dataclass(slots=True)
class ScriptedReplica:
    """A server that does what its script says with each request."""

    script: Script
    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    num_disconnects: int = 0
    server: asyncio.Server | None = None

    def stop(self) -> None:
        """Accept no further connection."""
        assert self.server is not None
        self.server.close()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                await self.script(Connection(writer), request)
        except (OSError, asyncio.IncompleteReadError):
            self.num_disconnects += 1
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return ReceivedRequest(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@asynccontextmanager
async def scripted(
    script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[ScriptedReplica]:
    """Run a scripted replica, on a free port by default."""
    replica = ScriptedReplica(script)
    replica.server = server = await asyncio.start_server(replica.handle, host, port, ssl=tls)
    scheme = "http" if tls is None else "https"
    replica.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield replica
    finally:
        server.close()


@dataclass(slots=True)
class RunningRouter:
    """A router that is served at a URL."""

    router: Router
    url: str
    drain_calls: list[int]

    async def drain(self) -> None:
        """Start the shutdown."""
        self.router.lifecycle.drain()
        self.drain_calls.append(1)


@asynccontextmanager
async def running_router(
    urls: Sequence[str], *, keys: KeyRing | None = None, kind: ReplicaKind = ReplicaKind.OPENAI,
    models: tuple[str, ...] = ("m",), tracer: Tracer | None = None, **options: Any,
) -> AsyncIterator[RunningRouter]:  # fmt: skip
    """Serve a router over replicas of one kind, without probes."""
    options.setdefault("policy", "round_robin")
    router = Router(RouterConfig(health=HealthConfig(has_active_probes=False), **options), tracer=tracer)
    running = RunningRouter(router, "", [])
    endpoints = [Endpoint(url=url, kind=kind, models=models) for url in urls]
    router.replicas.update(endpoints, router.clock.now())
    router.mark_started()
    app = router_app(router, Credentials(keys or KeyRing()), running.drain)
    assert app.batches is not None
    try:
        async with serving(app.asgi) as running.url:
            yield running
    finally:
        await app.batches.close()
        await router.close()
