"""send_request: reports how a request ended, whatever the server does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from soak import raw_client
from soak.raw_client import ClientBehavior, Outcome, RequestResult, build_request, send_request
from support_server import run
from support_shares import for_each

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "bad"}}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def chunks(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in (*bodies, b""))


def send_to(
    handle: Handler, *, delay: float = 0.0, timeout: float = 10.0, behavior: ClientBehavior = ClientBehavior.WAITS
) -> RequestResult:
    """Send a request to a server with this connection handler."""

    async def send() -> RequestResult:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            data = build_request("POST", "/x", b"{}", authorization="Bearer k")
            return await send_request(port, data, delay_seconds=delay, timeout_seconds=timeout, behavior=behavior)

    result: RequestResult = run(send())
    return result


def responder(data: bytes, *, closes: bool = True) -> Handler:
    """Return a connection handler that responds with `data` and then closes or waits for the client."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        if not closes:
            await reader.read()
        writer.close()

    return handle


@for_each(("data", "outcome", "status", "code"), [
    (response(200, b'{"a": 1}'), Outcome.RESPONSE, 200, ""),
    (response(400, ERROR), Outcome.RESPONSE, 400, "bad"),
    (response(500, b"oops"), Outcome.RESPONSE, 500, "no error object"),
    (response(200, b"12345")[:-2], Outcome.CONNECTION_LOST, 200, ""),
    (b"", Outcome.CONNECTION_LOST, 0, ""),
    (b"garbage\r\n\r\n", Outcome.CONNECTION_LOST, 0, ""),
    (STREAM + chunks(b"data: 1\n\n", b"data: [DONE]\n\n"), Outcome.STREAM, 200, ""),
    (STREAM + chunks(b"data: 1\n\n", b"event: error\ndata: " + ERROR + b"\n\n"), Outcome.ERROR_EVENT, 200, "bad"),
    (STREAM + chunks(b"data: 1\n\n"), Outcome.CONNECTION_LOST, 200, ""),
    (STREAM + chunks(b"data: 1\n\n", b"data: [DONE]\n\n")[:-5], Outcome.CONNECTION_LOST, 200, ""),
])  # fmt: skip
def test_outcome_status_and_code(data: bytes, outcome: Outcome, status: int, code: str) -> None:
    result = send_to(responder(data))
    assert (result.outcome, result.status, result.code) == (outcome, status, code)
    assert result.ended_at >= result.started_at


def test_a_silent_server_leads_to_a_timeout() -> None:
    assert send_to(responder(b"", closes=False), timeout=0.3).outcome is Outcome.TIMED_OUT
    assert send_to(responder(STREAM + b"5\r\nab", closes=False), timeout=0.3).outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize("behavior", [ClientBehavior.DISCONNECTS, ClientBehavior.RESETS])
def test_a_client_disconnects_after_its_delay(behavior: ClientBehavior) -> None:
    unfinished = send_to(responder(STREAM, closes=False), behavior=behavior, delay=0.1)
    assert unfinished.outcome is Outcome.CLIENT_CLOSED
    complete = send_to(responder(response(200, b"{}")), behavior=behavior, delay=5.0)
    assert complete.outcome is Outcome.RESPONSE


@pytest.mark.parametrize(
    "behavior", [ClientBehavior.HALF_CLOSES, ClientBehavior.READS_SLOWLY, ClientBehavior.STALLS]
)  # fmt: skip
def test_a_server_may_close_on_these_clients(behavior: ClientBehavior, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_client, "SLOW_PAUSE_SECONDS", 0.001)

    async def close_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(STREAM + b"ff\r\nabc")
        writer.close()

    assert send_to(close_early, behavior=behavior).outcome is Outcome.SERVER_CLOSED


def test_a_port_without_a_server_is_no_connection() -> None:
    async def send() -> RequestResult:
        server = await asyncio.start_server(responder(b""), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await send_request(port, build_request("GET", "/x"))

    assert run(send()).outcome is Outcome.NO_CONNECTION


def test_build_request_writes_headers_and_body() -> None:
    data = build_request("POST", "/x", b"abc", x_request_id="r")
    assert data.startswith(b"POST /x HTTP/1.1\r\n") and b"\r\nx-request-id: r\r\n" in data
    assert b"\r\ncontent-length: 3\r\n" in data and data.endswith(b"\r\n\r\nabc")
