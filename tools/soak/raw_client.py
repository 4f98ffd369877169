"""Wire: one request over a socket of its own, with the manners of a client that stays, leaves or dawdles."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

TAIL_BYTES = 8192
"""Of an answer that are kept: its end says how it ended."""

SLOW_BUFFER = 4096
SLOW_PAUSE = 0.2
SLOW_SECONDS = 15.0
"""After which a slow reader takes what the system still has for it, and sees whether it was let go."""


class ClientBehavior(StrEnum):
    """How a client behaves."""

    STAYS = "stays"
    LEAVES = "leaves"  # closes after a while, whatever came
    RESETS = "resets"  # the same with a reset
    HALF_CLOSES = "half-closes"  # says that it sends no more, which counts as leaving
    DAWDLES = "dawdles"  # reads a few bytes now and then
    STALLS = "stalls"  # sends a part of its request and waits


class End(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"  # a whole answer
    DONE = "done"  # a whole stream
    ERROR_EVENT = "error event"  # a stream that says why it ends
    LEFT = "left"  # the client did
    LET_GO = "let go"  # the server closed on a client with bad manners
    CUT = "cut"  # the server closed before its answer was whole
    HUNG = "hung"  # nothing more came
    NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a request.

    Attributes:
        end: how it ended.
        status: of the answer; 0 where none came.
        code: of its error, "" where it has none.
        body: the last bytes of it.
        began: seconds of the monotonic clock.
        ended: the same.
    """

    end: End
    status: int
    code: str
    body: bytes
    began: float
    ended: float


@dataclass(slots=True)
class _Read:
    """As far as an answer was read."""

    keep: int
    slow_until: float
    status: int = 0
    body: bytes = b""
    is_stream: bool = False
    is_whole: bool = False

    def add(self, data: bytes) -> None:
        self.body = (self.body + data)[-self.keep :]


def request(method: str, path: str, body: bytes = b"", /, **headers: str) -> bytes:
    """Return the bytes of a request; underscores in names of headers are written as hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "host: soak", "connection: close", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def ask(
    port: int, sent: bytes, *, manner: ClientBehavior = ClientBehavior.STAYS, seconds: float = 0.0,
    patience: float = 60.0,
    keep: int = TAIL_BYTES,
) -> Ending:  # fmt: skip
    """Send a request and see how it ends; `seconds` is when a client with such manners leaves.

    Of the answer the last `keep` bytes are kept.
    """
    began = time.monotonic()
    read = _Read(keep, began + SLOW_SECONDS)
    try:
        reader, writer = await _connect(port, slow=manner is ClientBehavior.DAWDLES)
    except OSError:
        return Ending(End.NO_CONNECTION, 0, "", b"", began, time.monotonic())
    try:
        end = await _ride(reader, writer, sent, read, manner, seconds, patience)
    finally:
        if manner is ClientBehavior.RESETS:
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return Ending(end, read.status, _code(read), read.body, began, time.monotonic())


async def _connect(port: int, *, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    peer = socket.socket()
    peer.setblocking(False)
    if slow:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
    try:
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=peer, limit=SLOW_BUFFER if slow else 2**16)
    except OSError:
        peer.close()
        raise


async def _ride(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes, read: _Read, manner: ClientBehavior,
    seconds: float, patience: float,
) -> End:  # fmt: skip
    leaves = manner in (ClientBehavior.LEAVES, ClientBehavior.RESETS)
    try:
        async with asyncio.timeout(seconds if leaves else patience):
            writer.write(sent[: len(sent) // 2] if manner is ClientBehavior.STALLS else sent)
            await writer.drain()
            if manner is ClientBehavior.HALF_CLOSES:
                await asyncio.sleep(seconds)
                writer.write_eof()
            await _answer(reader, read, pause=SLOW_PAUSE if manner is ClientBehavior.DAWDLES else 0.0)
    except TimeoutError:
        return End.LEFT if leaves else End.HUNG
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        pass
    if not read.is_whole:
        return End.CUT if manner in (ClientBehavior.STAYS, ClientBehavior.LEAVES, ClientBehavior.RESETS) else End.LET_GO
    if not read.is_stream:
        return End.ANSWERED
    if read.body.endswith(b"data: [DONE]\n\n"):
        return End.DONE
    return End.ERROR_EVENT if b"event: error\n" in read.body else End.CUT


async def _answer(reader: asyncio.StreamReader, read: _Read, *, pause: float) -> None:
    """Read a whole answer; raises what the connection raises when it is cut."""
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    read.status = int(lines[0].split()[1])
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if line)
    read.is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
    if headers.get(b"transfer-encoding") == b"chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await _take(reader, read, size, pause)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        await _take(reader, read, int(headers.get(b"content-length", b"0")), pause)
    read.is_whole = True


async def _take(reader: asyncio.StreamReader, read: _Read, size: int, pause: float) -> None:
    while size:
        piece = await reader.read(min(size, 64 if pause else 2**16))
        if not piece:
            raise asyncio.IncompleteReadError(piece, size)
        read.add(piece)
        size -= len(piece)
        if pause and time.monotonic() < read.slow_until:
            await asyncio.sleep(pause)


def _code(read: _Read) -> str:
    """Return the code of the error that an answer or the last event of a stream has."""
    text = read.body.rpartition(b"event: error\ndata: ")[2] if read.is_stream else read.body
    if (read.is_stream and b"event: error" not in read.body) or (not read.is_stream and read.status < 400):
        return ""
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "no error object"
