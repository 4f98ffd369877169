"""Scripted servers for tests of clients: they send any bytes, valid or invalid."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome

END = b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedServer:
    """A server that runs a script for each request, and records requests and connections."""

    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    num_connections: int = 0
    num_closed: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[ScriptedServer]:
    """Listen on a free port; connections stay open until the script or the client closes them."""
    server = ScriptedServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.num_connections += 1
        server.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                request = await _read(reader)
                server.requests.append(request)
                await script(request, writer)
                await writer.drain()
        server.num_closed += 1
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for writer in server.writers:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    headers = dict(line.lower().split(": ", 1) for line in lines)
    method, path, _ = first.split(" ")
    return ReceivedRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def text_chunk(text: str, *ids: int) -> dict[str, Any]:
    """Return the chunk object of a text, with its token ids if there are any."""
    return {"choices": [{"index": 0, "text": text, **({"token_ids": ids} if ids else {})}]}


def usage(output_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": output_tokens}}


def stream_response(*tokens: int) -> bytes:
    """Return a whole valid streamed response, one chunk per token."""
    events = [event(text_chunk("x", token)) for token in tokens]
    return HEAD + b"".join(map(chunk, [*events, event(usage(len(tokens))), event(b"[DONE]")])) + END


def plain_response(status: int, payload: Any, *headers: str) -> bytes:
    """Return a whole response that is not streamed."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    lines = [f"HTTP/1.1 {status} Reason", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def respond_with(response: bytes, *, closes: bool = False) -> Script:
    """Return a script that sends the same bytes for every request."""

    async def script(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        if closes:
            writer.close()

    return script


# -- records of requests -----------------------------------------------------------------------------------------------


def ok_record(due: float, *arrivals: float, **fields: Any) -> HttpRequestRecord:
    """Return the record of a request that ended with its last token; `fields` change it."""
    values = {
        "sent": due, "ended": arrivals[-1] if arrivals else due + 0.01, "outcome": Outcome.OK, "status": 200,
        "arrivals": array("d", arrivals), "weights": array("I", [1] * len(arrivals)),
        "usage_tokens": len(arrivals), "prompt_tokens": 10, "has_ids": True,
    }  # fmt: skip
    return HttpRequestRecord(due=due, **{**values, **fields})


def rejection_record(due: float, seconds: float, **fields: Any) -> HttpRequestRecord:
    values = {"outcome": Outcome.REFUSED, "status": 429, "code": "overloaded", "retry_after": 1.0}
    return ok_record(due, **{**values, "ended": due + seconds, **fields})
