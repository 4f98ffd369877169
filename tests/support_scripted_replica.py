"""ScriptedReplica: a real small HTTP server that answers each path as a test says, stalls, cuts or resets."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answer = bytes | Behaviour

TIMEOUT_SECONDS = 20.0
"""Timeout of every scenario, in seconds. Only a failing test reaches it."""


def response(status: int, body: bytes | object = b"", *, kind: str = "", headers: str = "") -> bytes:
    """Return an HTTP response; an object becomes JSON."""
    if not isinstance(body, bytes):
        body, kind = json.dumps(body).encode(), kind or "application/json"
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind or 'text/plain'}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer nothing until the client leaves."""
    await reader.read()


async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Promise ten bytes and end after five."""
    writer.write(response(200, b"x" * 10)[:-5])


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte every few milliseconds and never end."""
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n \r\n")
        await writer.drain()
        await asyncio.sleep(0.005)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an answer without an end as fast as it goes."""
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        await writer.drain()


class ScriptedReplica:
    """A server on 127.0.0.1. A path without an answer is 404.

    Attributes:
        answers: bytes of a whole response, or what to do, by path; may be changed at any time.
        paths: paths of the requests, in order.
        headers: the header blocks of the requests, in order.
        bodies: bodies of the requests that have one.
    """

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = dict(answers or {})
        self.paths: list[str] = []
        self.headers: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of the last time if there was one."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def wait_for_requests(self, number: int) -> None:
        """Wait until so many requests have come since the start."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.paths) < number:
                self._changed.clear()
                await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.headers.append(head)
        lengths = [line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        if lengths:
            self.bodies.append(await reader.readexactly(int(lengths[0])))
        path = head.split(" ")[1]
        self.paths.append(path)
        self._changed.set()
        answer = self.answers.get(path, response(404, {"error": "no such route"}))
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
        else:
            await answer(reader, writer)
            raise ConnectionError
