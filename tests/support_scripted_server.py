"""Servers with a script for tests of clients: they answer with whatever bytes a test wants, good or bad."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from chairlift.bench.server.response_recorder import HttpRequestRecord, Outcome

END = b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Scripted:
    """A server that follows a script; it notes what it saw."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    lost: int = 0
    open: list[asyncio.StreamWriter] = field(default_factory=list)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """Listen on a free port; connections are kept until the script closes them, or the client does."""
    server = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                seen = await _read(reader)
                server.seen.append(seen)
                await script(seen, writer)
                await writer.drain()
        server.lost += 1
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.open:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Seen:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    headers = dict(line.lower().split(": ", 1) for line in lines)
    method, path, _ = first.split(" ")
    return Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def text_chunk(text: str, *ids: int) -> dict[str, Any]:
    """Return the chunk object of a text, with its token ids where given."""
    return {"choices": [{"index": 0, "text": text, **({"token_ids": ids} if ids else {})}]}


def usage(output_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": output_tokens}}


def streamed(*tokens: int) -> bytes:
    """A whole good answer, a chunk a token."""
    events = [event(text_chunk("x", token)) for token in tokens]
    return HEAD + b"".join(map(chunk, [*events, event(usage(len(tokens))), event(b"[DONE]")])) + END


def plain(status: int, payload: Any, *headers: str) -> bytes:
    """A whole answer that is no stream."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def saying(response: bytes, *, closes: bool = False) -> Script:
    """Answer everything with the same bytes."""

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        if closes:
            writer.close()

    return script


# -- what a client noted ----------------------------------------------------------------------------------------------


def record(due: float, *arrivals: float, **fields: Any) -> HttpRequestRecord:
    """One that ended well with its last token, unless the fields say otherwise."""
    given = {
        "sent": due, "ended": arrivals[-1] if arrivals else due + 0.01, "outcome": Outcome.OK, "status": 200,
        "arrivals": array("d", arrivals), "weights": array("I", [1] * len(arrivals)),
        "usage_tokens": len(arrivals), "prompt_tokens": 10, "has_ids": True,
    }  # fmt: skip
    return HttpRequestRecord(due=due, **{**given, **fields})


def refusal(due: float, seconds: float, **fields: Any) -> HttpRequestRecord:
    given = {"outcome": Outcome.REFUSED, "status": 429, "code": "overloaded", "retry_after": 1.0}
    return record(due, **{**given, "ended": due + seconds, **fields})
