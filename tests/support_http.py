"""An HTTP server on a real socket, an application that records requests, and raw clients."""

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
from chairlift.web.bounded_http_protocol import EarlyCheck, HeadLimits, bounded_protocol
from chairlift.web.connection_end import abort_connection
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_bytes, send_object

TIMEOUT_SECONDS = 20.0
"""Timeout of every scenario, in seconds. Only a failing test reaches it."""

LONG_TIMEOUT = HeadLimits(seconds=TIMEOUT_SECONDS)
SHORT_TIMEOUT = HeadLimits(seconds=0.3)

GET = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64))


@dataclass
class App:
    """An application that responds with the request as JSON, and records paths and disconnects.

    Some paths differ: /held waits for `release`, /early responds without reading the body, /eager responds before
    it reads the body, /bad has status 400, /silent waits for a disconnect, /whole has `whole_bytes` bytes, and /flood
    sends parts until a disconnect.
    """

    paths: list[str] = field(default_factory=list)
    disconnected_paths: list[str] = field(default_factory=list)
    permits: list[Any] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    abort: Callable[[], None] | None = None
    flood_part_bytes: int = 1000
    whole_bytes: int = 1000

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.paths.append(path)
        self.permits.append(request_info(scope).permit)
        if path == "/early":
            await send_object(send, {"early": True}, status=404)
        elif path == "/eager":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            await self._read_body(path, receive)
        elif path == "/whole":
            await send_bytes(send, b"x" * self.whole_bytes)
        elif path == "/silent":
            while path not in self.disconnected_paths:
                await self._read_body(path, receive)
        elif path == "/flood":
            await self._send_flood(scope, receive, send)
        else:
            body = await self._read_body(path, receive)
            if body is None:
                return
            if path == "/held":
                await self.release.wait()
            names = {name.decode(): value.decode() for name, value in scope["headers"]}
            request = {"method": scope["method"], "path": path, "body": body.decode("latin-1"), "headers": names}
            await send_object(send, request, status=400 if path == "/bad" else 200)

    async def _read_body(self, path: str, receive: Any) -> bytes | None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected_paths.append(path)
                return None
            body += message["body"]
            if not message["more_body"]:
                return body

    async def _send_flood(self, scope: Any, receive: Any, send: Any) -> None:
        await self._read_body("/flood", receive)
        self.abort = functools.partial(abort_connection, scope)
        disconnect = asyncio.create_task(self._read_body("/flood", receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not disconnect.done():
            await send({"type": "http.response.body", "body": b"x" * self.flood_part_bytes, "more_body": True})
            await asyncio.sleep(0.001)


@dataclass
class Response:
    """A response as the raw client read it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def object(self) -> Any:
        return json.loads(self.body)


def parse_response(data: bytes) -> Response:
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    return Response(int(status_line.split()[1]), dict(line.split(": ", 1) for line in lines), body)


class RawClient:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes, pause: float = 0.0) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(pause)

    async def read_response(self) -> Response:
        response = parse_response(await self.reader.readuntil(b"\r\n\r\n"))
        response.body = await self.reader.readexactly(int(response.headers.get("content-length", 0)))
        return response

    async def request(self, *parts: bytes) -> Response:
        await self.send(*parts)
        return await self.read_response()

    async def read_rest(self) -> bytes:
        """Read all bytes until the server closes the connection."""
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

    async def connect(self) -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))


Scenario = Callable[[ListeningServer], Awaitable[None]]


def ignore_record(record: AccessRecord) -> None:
    """Do not log the request."""


def make_config(
    app: Any, limits: HeadLimits, idle: float, write_timeout: float = TIMEOUT_SECONDS,
    log_access: Callable[[AccessRecord], None] = ignore_record, early_check: EarlyCheck | None = None,
) -> uvicorn.Config:  # fmt: skip
    http = bounded_protocol(limits, write_timeout, log_access, early_check)
    return uvicorn.Config(
        app, host="127.0.0.1", port=0, http=http, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, interface="asgi3", timeout_keep_alive=idle,
    )  # fmt: skip


def run_scenario(
    scenario: Scenario, *, limits: HeadLimits = LONG_TIMEOUT, idle: float = TIMEOUT_SECONDS,
    write_timeout: float = TIMEOUT_SECONDS, log_access: Callable[[AccessRecord], None] = ignore_record,
    early_check: EarlyCheck | None = None,
) -> App:  # fmt: skip
    """Run a scenario against a server; returns its application, and closes all connections."""

    async def serve() -> App:
        app, state = App(), ServerState()
        config = make_config(app, limits, idle, write_timeout, log_access, early_check)
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
        return runner.run(asyncio.wait_for(serve(), TIMEOUT_SECONDS))


async def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


def check_rejection(response: Response, status: int, code: str) -> None:
    """Assert that a response is an error with this status and code that closes the connection."""
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    assert response.headers["x-request-id"].startswith("req-")
    error = response.object["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert error["message"]


async def request_and_check_rejection(server: ListeningServer, status: int, code: str, *parts: bytes) -> Response:
    """Send bytes and assert that one error response follows, and then the end of the connection."""
    client = await server.connect()
    response = await client.request(*parts)
    check_rejection(response, status, code)
    assert await client.read_rest() == b""
    return response
