"""Attempt task: what an attempt reports, in order, for each way in which a response can go or fail."""

import asyncio
import socket
from typing import Any

import pytest

from chairlift.router.attempts.actions import ResponseMode
from chairlift.router.attempts.chunks import Chunk, ChunkKind
from chairlift.router.attempts.events import (
    AttemptBroken,
    ChunksReceived,
    CommentReceived,
    ConnectFailed,
    FailureReason,
    RequestSent,
    ResponseEnded,
    ResponseReceived,
)
from support_attempt_task import AttemptLog, attempt, events_of, raw, send_attempt, upstream_of
from support_router import Connection, ReceivedRequest, scripted
from support_server import run
from support_services_processes import free_port

SENT, OK = RequestSent(1), ResponseReceived(1, 200)
RESET, EOF = AttemptBroken(1, FailureReason.RESET), AttemptBroken(1, FailureReason.EOF)
EVENT, DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
OPAQUE = ChunksReceived(1, (Chunk(EVENT),))

# -- no response -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "replica.invalid", "a" * 70], ids=["refused", "no such name", "no possible name"]
)
def test_a_replica_that_cannot_be_reached_was_not_sent_the_request(host: str) -> None:
    async def scenario() -> None:
        async with upstream_of() as upstream:
            assert (await attempt(upstream, f"http://{host}:{free_port()}")).events == [ConnectFailed(1)]

    run(scenario())


def test_a_server_without_tls_was_not_sent_the_request() -> None:
    async def scenario() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 this is no TLS\r\n")

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server, upstream_of() as upstream:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            assert (await attempt(upstream, url)).events == [ConnectFailed(1)]

    run(scenario())


def test_the_request_is_sent_once_the_connection_is_open() -> None:
    async def scenario() -> None:
        with socket.socket() as listener, socket.socket() as first:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            first.connect(listener.getsockname())  # fills the queue: the next connection is not accepted
            async with upstream_of() as upstream:
                log = AttemptLog()
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                task = asyncio.create_task(attempt(upstream, url, log=log))
                done, _ = await asyncio.wait([task], timeout=0.05)
                assert not done and not log.events
                task.cancel()
                await asyncio.wait([task])
                assert not log.events, "an attempt that was aborted reports nothing"

    run(scenario())


async def reset(connection: Connection, request: ReceivedRequest) -> None:
    connection.reset()


@pytest.mark.share(6)
@pytest.mark.parametrize(
    "script",
    [reset, raw(), raw(b"HTTP/1.1 200 OK\r\ncontent-le"), raw(b"no HTTP\r\n\r\n"), raw(b"HTTP/1.1 abc\r\n\r\n"),
     raw(b"HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n"), raw(b"HTTP/1.1 101 Switch\r\nupgrade: x\r\n\r\n")],
    ids=["reset", "closed", "half a head", "not HTTP", "no status", "no possible status", "another protocol"],
)  # fmt: skip
def test_a_connection_that_ends_before_the_response_is_a_reset(script: Any) -> None:
    assert events_of(script) == [SENT, RESET]


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_a_whole_body() -> None:
    async def respond(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond(b'{"a":1}', x_chairlift_load="v=1", x_own="1")

    async def scenario() -> None:
        async with scripted(respond) as replica, upstream_of() as upstream:
            log = await attempt(upstream, replica.url)
            assert log.events == [SENT, OK, ResponseEnded(1, b'{"a":1}')] and log.num_bytes == 0
            assert log.response.status == 200 and log.response.load_header == "v=1"
            assert list(log.response.headers) == [(b"content-type", b"application/json"), (b"x-own", b"1")]

    run(scenario())


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"
PIECE = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("pieces", "end"),
    [
        ((CHUNKED, PIECE), RESET),
        ((CHUNKED, PIECE, b"20\r\ndata: "), RESET),
        ((CHUNKED, PIECE, b"0\r\n\r\n"), EOF),
        ((UNTIL_CLOSED, EVENT), EOF),
        ((UNTIL_CLOSED.replace(b"\r\n\r\n", b"\r\ncontent-length: 900\r\n\r\n"), EVENT), RESET),
        ((CHUNKED, PIECE, b"e\r\n%s\r\n0\r\n\r\n" % DONE), ResponseEnded(1)),
        ((UNTIL_CLOSED, EVENT, DONE), ResponseEnded(1)),
    ],
    ids=[
        "no last chunk", "half a chunk", "last chunk without done", "closed without done", "too short",
        "done", "done and closed",
    ],
)  # fmt: skip
def test_how_a_stream_ends(pieces: tuple[bytes, ...], end: Any) -> None:
    first, second, *received, last = events_of(raw(*pieces), ResponseMode.OPAQUE)
    assert (first, second, last) == (SENT, OK, end)
    payload = b"".join(chunk.payload for event in received for chunk in event.chunks)
    assert payload == (EVENT + DONE if end == ResponseEnded(1) else EVENT)


@pytest.mark.parametrize("mode", [ResponseMode.OPAQUE, ResponseMode.TOKENS, ResponseMode.PROGRESS])
def test_comments_with_nothing_beside_them_are_reported(mode: ResponseMode) -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        for number in (3, 4):
            await connection.piece(b": wait")
            await asyncio.sleep(0)
            await connection.piece(b"ing\n\n")
            await log.wait_for(number)
        await connection.piece(DONE if mode is not ResponseMode.PROGRESS else b"event: response\ndata: {}\n\n")
        await connection.end()

    log = AttemptLog()
    *events, end = events_of(script, mode, log=log)
    assert events[:4] == [SENT, OK, CommentReceived(1), CommentReceived(1)] and isinstance(end, ResponseEnded)


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "bad chunk"])
def test_a_reset_in_a_body_follows_what_came_before(is_reset: bool) -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(EVENT)
        await log.wait_for(3)
        if is_reset:
            connection.reset()
        connection.write(b"no length\r\n")

    log = AttemptLog()
    assert events_of(script, ResponseMode.OPAQUE, log=log) == [SENT, OK, OPAQUE, RESET]


def test_an_attempt_that_is_cancelled_closes_its_connection_and_reports_no_more() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(EVENT)

    async def scenario() -> None:
        async with scripted(script) as replica, upstream_of() as upstream:
            log = AttemptLog()
            task = asyncio.create_task(attempt(upstream, replica.url, ResponseMode.OPAQUE, log=log))
            await log.wait_for(3)
            task.cancel()
            await asyncio.wait([task])
            assert log.events == [SENT, OK, OPAQUE] and not any(upstream.session.connector._conns.values())  # type: ignore[union-attr]

    run(scenario())


def test_a_stream_is_read_no_further_than_the_client_reads() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(EVENT)
        await log.wait_for(3)
        await connection.piece(EVENT)
        await connection.piece(DONE)
        await connection.end()
        sent.set()

    def wait_until_read(num_bytes: int) -> "asyncio.Future[None] | None":
        return read

    async def scenario() -> None:
        nonlocal read
        read = asyncio.get_running_loop().create_future()
        async with scripted(script) as replica, upstream_of() as upstream:
            task = asyncio.create_task(
                send_attempt(upstream, replica.url, ResponseMode.OPAQUE, log=log, wait_until_read=wait_until_read)
            )
            await sent.wait()
            await asyncio.sleep(0.02)
            assert log.events == [SENT, OK, OPAQUE]
            read.set_result(None)
            await task
            assert log.events[-1] == ResponseEnded(1)

    log, sent = AttemptLog(), asyncio.Event()
    read: asyncio.Future[None]
    run(scenario())


@pytest.mark.parametrize("framing", ["content-length: 3000000\r\n", "", "transfer-encoding: chunked\r\n"])
def test_a_body_whose_connection_is_closed_while_the_client_is_slow_is_complete(framing: str) -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(f"HTTP/1.1 200 OK\r\n{framing}content-type: text/event-stream\r\n\r\n".encode())
        for _ in range(30):
            data = b"x" * 100_000
            connection.write(b"%x\r\n%s\r\n" % (len(data), data) if "chunked" in framing else data)
            await asyncio.sleep(0)
        connection.write(b"0\r\n\r\n" if "chunked" in framing else b"")
        connection.close()

    def wait_until_read(num_bytes: int) -> "asyncio.Future[None]":
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, read.set_result, None)
        return read

    sent, ok, *pieces, end = events_of(script, wait_until_read=wait_until_read)
    assert (sent, ok, end) == (SENT, OK, ResponseEnded(1))
    assert b"".join(piece.chunks[0].payload for piece in pieces) == b"x" * 3_000_000


def test_attempts_that_wait_for_the_same_client_are_cancelled_each_on_its_own() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(EVENT + DONE)
        await connection.end()

    async def scenario() -> None:
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        logs = AttemptLog(), AttemptLog()
        async with scripted(script) as replica, upstream_of() as upstream:
            one, two = (
                asyncio.create_task(
                    send_attempt(upstream, replica.url, ResponseMode.OPAQUE, log=log, wait_until_read=lambda _: read)
                )
                for log in logs
            )
            for log in logs:
                await log.wait_for(3)
            one.cancel()
            await asyncio.wait([one])
            assert not two.done() and not read.cancelled()
            read.set_result(None)
            await two
            assert logs[1].events[-1] == ResponseEnded(1)

    run(scenario())


# -- modes -------------------------------------------------------------------------------------------------------------


async def json_answer(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond(request.fields)


@pytest.mark.parametrize("mode", [ResponseMode.PROGRESS, ResponseMode.TOKENS, ResponseMode.OPAQUE])
def test_a_server_that_answers_a_stream_with_a_body_is_read_whole(mode: ResponseMode) -> None:
    assert events_of(json_answer, mode) == [SENT, OK, ResponseEnded(1, b'{"model": "m"}')]


def test_a_compressed_stream_is_read_whole() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head(content_encoding="gzip")
        await connection.piece(b"\x1f\x8b\n\n\n\n")
        await connection.end()

    assert events_of(script, ResponseMode.OPAQUE) == [SENT, OK, ResponseEnded(1, b"\x1f\x8b\n\n\n\n")]


def test_progress_events_and_token_ids() -> None:
    async def progress(connection: Connection, request: ReceivedRequest) -> None:
        assert request.headers.get("x-chairlift-progress") == "1"
        await connection.stream_head()
        await connection.piece(b'event: progress\ndata: {"index":0,"token_ids":[5],"position":0}\n\n')
        await connection.piece(b'event: response\ndata: {"choices":[]}\n\n')
        await connection.end()

    chunk = Chunk(b"", ChunkKind.CHOICE, 0, (5,), 0)
    events = events_of(progress, ResponseMode.PROGRESS)
    assert events == [SENT, OK, ChunksReceived(1, [chunk]), ResponseEnded(1, b'{"choices":[]}')]

    payload = (
        b'data: {"id":"c","choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":[7],"position":3}]}\n\n'
    )

    async def tokens(connection: Connection, request: ReceivedRequest) -> None:
        assert "x-chairlift-progress" not in request.headers
        await connection.stream_head()
        await connection.piece(payload + DONE)
        await connection.end()

    expected = ChunksReceived(1, [Chunk(payload, ChunkKind.CHOICE, 0, (7,), 3)])
    assert events_of(tokens, ResponseMode.TOKENS) == [SENT, OK, expected, ResponseEnded(1, DONE)]


# -- the request -------------------------------------------------------------------------------------------------------


def test_what_a_replica_receives() -> None:
    async def scenario() -> None:
        async with scripted(json_answer) as replica, upstream_of() as upstream:
            await attempt(upstream, replica.url, members={"model": "b"}, own_members={"seed": 4}, timeout_seconds=1.5)
            await attempt(upstream, replica.url, body=b'{ "a" : 1.0 }', timeout_seconds=0.0)
            first, second = replica.requests
            assert first.body == b'{"model":"b","seed":4}' and first.fields == {"model": "b", "seed": 4}
            assert second.body == b'{ "a" : 1.0 }', "without further members the body passes as it is"
            assert first.method == "POST" and first.target == "/v1/completions"
            assert first.headers["x-request-id"] == "r-1" and first.headers["x-chairlift-router"] == "1"
            assert first.headers["x-request-timeout-ms"] == "1500" and second.headers["x-request-timeout-ms"] == "1"

    run(scenario())


def test_run_attempt_leaves_a_bug_to_its_task() -> None:
    def fail(events: Any) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with scripted(json_answer) as replica, upstream_of() as upstream:
            with pytest.raises(ZeroDivisionError):
                await send_attempt(upstream, replica.url, report=fail)

    run(scenario())
