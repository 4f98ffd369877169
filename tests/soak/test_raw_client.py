"""The client of a soak tells how a request ended, whatever its server does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from soak import raw_client
from soak.raw_client import ClientBehavior, End, Ending, ask, request
from support_server import run

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "bad"}}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def chunks(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in (*bodies, b""))


def against(
    handle: Handler, *, seconds: float = 0.0, patience: float = 10.0, manner: ClientBehavior = ClientBehavior.STAYS
) -> Ending:
    async def asking() -> Ending:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            sent = request("POST", "/x", b"{}", authorization="Bearer k")
            return await ask(port, sent, seconds=seconds, patience=patience, manner=manner)

    found: Ending = run(asking())
    return found


def says(answer: bytes, *, closes: bool = True) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if not closes:
            await reader.read()
        writer.close()

    return handle


@pytest.mark.parametrize(("answer", "end", "status", "code"), [
    (whole(200, b'{"a": 1}'), End.ANSWERED, 200, ""),
    (whole(400, ERROR), End.ANSWERED, 400, "bad"),
    (whole(500, b"oops"), End.ANSWERED, 500, "no error object"),
    (whole(200, b"12345")[:-2], End.CUT, 200, ""),
    (b"", End.CUT, 0, ""),
    (b"garbage\r\n\r\n", End.CUT, 0, ""),
    (STREAM + chunks(b"data: 1\n\n", b"data: [DONE]\n\n"), End.DONE, 200, ""),
    (STREAM + chunks(b"data: 1\n\n", b"event: error\ndata: " + ERROR + b"\n\n"), End.ERROR_EVENT, 200, "bad"),
    (STREAM + chunks(b"data: 1\n\n"), End.CUT, 200, ""),
    (STREAM + chunks(b"data: 1\n\n", b"data: [DONE]\n\n")[:-5], End.CUT, 200, ""),
])  # fmt: skip
def test_how_it_ended(answer: bytes, end: End, status: int, code: str) -> None:
    found = against(says(answer))
    assert (found.end, found.status, found.code) == (end, status, code)
    assert found.ended >= found.began


def test_who_says_nothing_hangs() -> None:
    assert against(says(b"", closes=False), patience=0.3).end is End.HUNG
    assert against(says(STREAM + b"5\r\nab", closes=False), patience=0.3).end is End.HUNG


@pytest.mark.parametrize("manner", [ClientBehavior.LEAVES, ClientBehavior.RESETS])
def test_who_leaves_has_left(manner: ClientBehavior) -> None:
    assert against(says(STREAM, closes=False), manner=manner, seconds=0.1).end is End.LEFT
    assert against(says(whole(200, b"{}")), manner=manner, seconds=5.0).end is End.ANSWERED


@pytest.mark.parametrize("manner", [ClientBehavior.HALF_CLOSES, ClientBehavior.DAWDLES, ClientBehavior.STALLS])
def test_who_has_bad_manners_may_be_let_go(manner: ClientBehavior, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_client, "SLOW_PAUSE", 0.001)

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(STREAM + b"ff\r\nabc")
        writer.close()

    assert against(closes, manner=manner).end is End.LET_GO


def test_nobody_there_is_no_connection() -> None:
    async def asking() -> Ending:
        server = await asyncio.start_server(says(b""), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await ask(port, request("GET", "/x"))

    assert run(asking()).end is End.NO_CONNECTION


def test_a_request_is_one() -> None:
    sent = request("POST", "/x", b"abc", x_request_id="r")
    assert sent.startswith(b"POST /x HTTP/1.1\r\n") and b"\r\nx-request-id: r\r\n" in sent
    assert b"\r\ncontent-length: 3\r\n" in sent and sent.endswith(b"\r\n\r\nabc")
