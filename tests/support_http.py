"""An HTTP server on a real socket for tests: an application that records its requests, and raw clients."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from chairlift.web.access_log import AccessRecord
from chairlift.web.body import abort_connection
from chairlift.web.http_protocol import EarlyCheck, HeadLimits, bounded_protocol
from chairlift.web.middleware import send_bytes, send_object

PATIENCE = 20.0
"""Timeout of every scenario, in seconds; only a failing test reaches it."""

CALM = HeadLimits(seconds=PATIENCE)
BRISK = HeadLimits(seconds=0.3)

GET = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64))


@dataclass
class App:
    """Responds with the request. /held waits for the gate, /early leaves the body, /bad is a 400.

    /flood never ends, /whole is long.
    """

    heard: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    permits: list[Any] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    abort: Callable[[], None] | None = None
    flood: int = 1000
    whole: int = 1000

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.heard.append(path)
        self.permits.append(scope.get("permit"))
        if path == "/early":
            await send_object(send, {"early": True}, status=404)
        elif path == "/eager":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            await self._body(path, receive)
        elif path == "/whole":
            await send_bytes(send, b"x" * self.whole)
        elif path == "/flood":
            await self._flood(scope, receive, send)
        else:
            body = await self._body(path, receive)
            if body is None:
                return
            if path == "/held":
                await self.gate.wait()
            names = {name.decode(): value.decode() for name, value in scope["headers"]}
            said = {"method": scope["method"], "path": path, "body": body.decode("latin-1"), "headers": names}
            await send_object(send, said, status=400 if path == "/bad" else 200)

    async def _body(self, path: str, receive: Any) -> bytes | None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.append(path)
                return None
            body += message["body"]
            if not message["more_body"]:
                return body

    async def _flood(self, scope: Any, receive: Any, send: Any) -> None:
        await self._body("/flood", receive)
        self.abort = functools.partial(abort_connection, scope)
        left = asyncio.create_task(self._body("/flood", receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.done():
            await send({"type": "http.response.body", "body": b"x" * self.flood, "more_body": True})
            await asyncio.sleep(0.001)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def object(self) -> Any:
        return json.loads(self.body)


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    return Answer(int(line.split()[1]), dict(line.split(": ", 1) for line in lines), body)


class RawClient:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *pieces: bytes, pause: float = 0.0) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(pause)

    async def read_response(self) -> Answer:
        result = parsed(await self.reader.readuntil(b"\r\n\r\n"))
        result.body = await self.reader.readexactly(int(result.headers.get("content-length", 0)))
        return result

    async def request(self, *pieces: bytes) -> Answer:
        await self.send(*pieces)
        return await self.read_response()

    async def read_rest(self) -> bytes:
        """Read all bytes until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


@dataclass
class ListeningServer:
    """A listening server, its application and its uvicorn state."""

    port: int
    app: App
    state: ServerState

    async def peer(self) -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))


Scenario = Callable[[ListeningServer], Awaitable[None]]


def configured(
    app: Any, limits: HeadLimits, idle: float, write_seconds: float = PATIENCE,
    seen: Callable[[AccessRecord], None] = lambda seen: None, gate: EarlyCheck | None = None,
) -> uvicorn.Config:  # fmt: skip
    http = bounded_protocol(limits, write_seconds, seen, gate)
    return uvicorn.Config(
        app, host="127.0.0.1", port=0, http=http, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, interface="asgi3", timeout_keep_alive=idle,
    )  # fmt: skip


def run_scenario(
    scenario: Scenario, *, limits: HeadLimits = CALM, idle: float = PATIENCE, write_seconds: float = PATIENCE,
    seen: Callable[[AccessRecord], None] = lambda seen: None, gate: EarlyCheck | None = None,
) -> App:  # fmt: skip
    """Run a scenario against a server and return its application; closes every connection at the end."""

    async def whole() -> App:
        app, state = App(), ServerState()
        config = configured(app, limits, idle, write_seconds, seen, gate)
        config.load()
        protocol: Any = config.http_protocol_class
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
        async with listener:
            await scenario(ListeningServer(listener.sockets[0].getsockname()[1], app, state))
            for connection in list(state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
        for task in list(state.tasks):
            task.cancel()
        return app

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(whole(), PATIENCE))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)
