"""send_request: sends one request over its own socket as a client that waits, disconnects, or reads or sends slowly."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

TAIL_BYTES = 8192
"""Number of bytes at the end of a response that are kept: they show how the response ended."""

SLOW_BUFFER_BYTES = 4096
SLOW_READ_BYTES = 64
SLOW_PAUSE_SECONDS = 0.2
"""Pause of a slow reader between two reads."""

SLOW_SECONDS = 15.0
"""Time after which a slow reader reads at full speed, and so notices whether the server closed the connection."""


class ClientBehavior(StrEnum):
    """How a client behaves."""

    WAITS = "waits"
    DISCONNECTS = "disconnects"  # closes the connection after a delay, whatever it received
    RESETS = "resets"  # resets the connection after a delay
    HALF_CLOSES = "half-closes"  # closes its sending side after a delay, which the server treats as a disconnect
    READS_SLOWLY = "reads slowly"  # reads a few bytes at a time
    STALLS = "stalls"  # sends half of its request and waits


class Outcome(StrEnum):
    """How a request ended."""

    RESPONSE = "response"  # a complete response that is not a stream
    STREAM = "stream"  # a complete stream
    ERROR_EVENT = "error event"  # a stream whose last event is an error
    CLIENT_CLOSED = "client closed"
    SERVER_CLOSED = (
        "server closed"  # before the response was complete, on a client that half-closes, reads or sends slowly
    )
    CONNECTION_LOST = "connection lost"  # before the response was complete, on any other client
    TIMED_OUT = "timed out"  # the client waited in vain for more data
    NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of a request.

    Attributes:
        outcome: how it ended.
        status: status of the response; 0 without a response.
        code: code of the error; "" without an error.
        body: last bytes of the response's body.
        started_at: when the client connected, in seconds of the monotonic clock.
        ended_at: when the request ended, on the same clock.
    """

    outcome: Outcome
    status: int
    code: str
    body: bytes
    started_at: float
    ended_at: float


@dataclass(slots=True)
class _Response:
    """The part of a response that was read so far."""

    keep_bytes: int
    slow_until: float
    status: int = 0
    body: bytes = b""
    is_stream: bool = False
    is_complete: bool = False

    def add(self, data: bytes) -> None:
        self.body = (self.body + data)[-self.keep_bytes :]


def build_request(method: str, path: str, body: bytes = b"", /, **headers: str) -> bytes:
    """Return the bytes of a request; underscores in the names of headers become hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "host: soak", "connection: close", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def send_request(
    port: int, data: bytes, *, behavior: ClientBehavior = ClientBehavior.WAITS, delay_seconds: float = 0.0,
    timeout_seconds: float = 60.0, keep_bytes: int = TAIL_BYTES,
) -> RequestResult:  # fmt: skip
    """Send a request and return how it ended, with the last `keep_bytes` of the response's body.

    After `delay_seconds`, a client that disconnects, resets or half-closes does so.
    """
    started_at = time.monotonic()
    response = _Response(keep_bytes, started_at + SLOW_SECONDS)
    try:
        reader, writer = await _connect(port, slow=behavior is ClientBehavior.READS_SLOWLY)
    except OSError:
        return RequestResult(Outcome.NO_CONNECTION, 0, "", b"", started_at, time.monotonic())
    try:
        outcome = await _exchange(reader, writer, data, response, behavior, delay_seconds, timeout_seconds)
    finally:
        if behavior is ClientBehavior.RESETS:
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return RequestResult(
        outcome, response.status, _error_code(response), response.body, started_at, time.monotonic()
    )  # fmt: skip


async def _connect(port: int, *, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    connection.setblocking(False)
    if slow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=connection, limit=SLOW_BUFFER_BYTES if slow else 2**16)
    except OSError:
        connection.close()
        raise


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, response: _Response,
    behavior: ClientBehavior, delay_seconds: float, timeout_seconds: float,
) -> Outcome:  # fmt: skip
    disconnects = behavior in (ClientBehavior.DISCONNECTS, ClientBehavior.RESETS)
    try:
        async with asyncio.timeout(delay_seconds if disconnects else timeout_seconds):
            writer.write(data[: len(data) // 2] if behavior is ClientBehavior.STALLS else data)
            await writer.drain()
            if behavior is ClientBehavior.HALF_CLOSES:
                await asyncio.sleep(delay_seconds)
                writer.write_eof()
            pause = SLOW_PAUSE_SECONDS if behavior is ClientBehavior.READS_SLOWLY else 0.0
            await _read_response(reader, response, pause=pause)
    except TimeoutError:
        return Outcome.CLIENT_CLOSED if disconnects else Outcome.TIMED_OUT
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        pass
    if not response.is_complete:
        may_be_closed = not disconnects and behavior is not ClientBehavior.WAITS
        return Outcome.SERVER_CLOSED if may_be_closed else Outcome.CONNECTION_LOST
    if not response.is_stream:
        return Outcome.RESPONSE
    if response.body.endswith(b"data: [DONE]\n\n"):
        return Outcome.STREAM
    return Outcome.ERROR_EVENT if b"event: error\n" in response.body else Outcome.CONNECTION_LOST


async def _read_response(reader: asyncio.StreamReader, response: _Response, *, pause: float) -> None:
    """Read a complete response. Raises the connection's error if the connection closes before the end."""
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    response.status = int(lines[0].split()[1])
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if line)
    response.is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
    if headers.get(b"transfer-encoding") == b"chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await _read_body(reader, response, size, pause)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        await _read_body(reader, response, int(headers.get(b"content-length", b"0")), pause)
    response.is_complete = True


async def _read_body(reader: asyncio.StreamReader, response: _Response, num_bytes: int, pause: float) -> None:
    while num_bytes:
        data = await reader.read(min(num_bytes, SLOW_READ_BYTES if pause else 2**16))
        if not data:
            raise asyncio.IncompleteReadError(data, num_bytes)
        response.add(data)
        num_bytes -= len(data)
        if pause and time.monotonic() < response.slow_until:
            await asyncio.sleep(pause)


def _error_code(response: _Response) -> str:
    """Return the code of the error in a response or in a stream's last event; "" without an error."""
    if response.is_stream:
        has_error, text = b"event: error" in response.body, response.body.rpartition(b"event: error\ndata: ")[2]
    else:
        has_error, text = response.status >= 400, response.body
    if not has_error:
        return ""
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "no error object"
