"""bounded_http_protocol.py on real sockets: requests, connections that end, invalid data."""

import asyncio

import pytest
import uvicorn

from chairlift.web.access_log import AccessRecord
from chairlift.web.bounded_http_protocol import HeadLimits
from support_http import (
    CHUNKED,
    GET,
    LONG_TIMEOUT,
    SHORT_TIMEOUT,
    TIMEOUT_SECONDS,
    TLS_HELLO,
    App,
    ListeningServer,
    RawClient,
    check_rejection,
    make_config,
    parse_response,
    request_and_check_rejection,
    run_scenario,
    wait_until,
)

# -- requests ------------------------------------------------------------------------------------------------------


def test_requests_follow_each_other_on_a_connection() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        for number in range(3):
            assert (await client.request(GET % b"%d" % number)).object["path"] == f"/{number}"
        assert len(server.state.connections) == 1

    assert run_scenario(scenario).paths == ["/0", "/1", "/2"]


def test_a_uvicorn_server_takes_the_protocol() -> None:
    async def serve_once() -> None:
        server = uvicorn.Server(make_config(App(), LONG_TIMEOUT, 5))
        serving = asyncio.create_task(server.serve())
        await wait_until(lambda: server.started)
        client = RawClient(*await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()))
        assert (await client.request(GET % b"a")).status == 200
        check_rejection(await client.request(b"\0\r\n\r\n"), 400, "malformed_request")
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(serve_once(), TIMEOUT_SECONDS))


def test_a_connection_goes_on_after_an_ordinary_400() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(GET % b"bad")).status == 400
        assert (await client.request(b"POST /bad HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc")).status == 400
        assert (await client.request(GET % b"good")).status == 200

    run_scenario(scenario)


def test_a_body_in_pieces_is_not_bound_by_the_heads_time() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(b"POST /a HTTP/1.1\r\ncontent-length: 20\r\n\r\n")
        await client.send(*[b"x"] * 20, pause=0.01)
        assert (await client.read_response()).object["body"] == "x" * 20

    run_scenario(scenario, limits=HeadLimits(seconds=0.05))


def test_a_body_is_not_bound_by_the_heads_bytes() -> None:
    async def scenario(server: ListeningServer) -> None:
        for head, end in ((b"POST /a HTTP/1.1\r\ncontent-length: 300000\r\n\r\n", b""), (CHUNKED, b"0\r\n\r\n")):
            client = await server.connect()
            part = b"x" * 1000
            parts = [part if not end else b"3e8\r\n%s\r\n" % part] * 300
            assert len((await client.request(head, *parts, end)).object["body"]) == 300_000

    run_scenario(scenario, limits=HeadLimits(bytes=2000))


def test_a_hundred_tiny_chunks_in_a_hundred_packets_are_a_body() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        response = await client.request(CHUNKED, *[b"1\r\nx\r\n"] * 100, b"0\r\n\r\n")
        assert response.object["body"] == "x" * 100

    run_scenario(scenario, limits=HeadLimits(bytes=150))


def test_expect_100_continue() -> None:
    async def scenario(server: ListeningServer) -> None:
        head = b"POST /%s HTTP/1.1\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
        client = await server.connect()
        assert (await client.request(head % b"a")).status == 100
        assert (await client.request(b"abc")).object["body"] == "abc"
        assert (await client.request(head % b"early")).status == 404

    run_scenario(scenario)


def test_http_1_0_ends_with_its_answer() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(b"GET /a HTTP/1.0\r\n\r\n")).status == 200
        assert await client.read_rest() == b""

    run_scenario(scenario)


def test_a_client_that_closes_a_direction_is_disconnected() -> None:
    """Case 57 of the HTTP contract."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\na")
        client.writer.write_eof()
        await wait_until(lambda: server.app.disconnected_paths == ["/a"])

    run_scenario(scenario)


def test_a_client_that_does_not_read_can_be_dropped_with_its_buffered_data() -> None:
    """Case 58 of the HTTP contract. An ordinary close would wait until the client reads."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        server.app.flood_part_bytes = 1_000_000
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(GET % b"flood")
        await wait_until(lambda: any(connection.flow.write_paused for connection in server.state.connections))  # type: ignore[union-attr]
        assert server.app.abort is not None
        server.app.abort()
        await wait_until(lambda: not server.state.connections and server.app.disconnected_paths == ["/flood"])

    run_scenario(scenario)


def test_a_client_that_never_reads_a_full_response_is_dropped() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        server.app.whole_bytes = 30_000_000
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(GET % b"whole")
        await wait_until(lambda: server.app.paths == ["/whole"] and not server.state.connections)

    run_scenario(scenario, write_timeout=0.2)


def test_a_client_that_reads_a_full_response_slowly_gets_all_of_it() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        server.app.whole_bytes = 30_000_000
        await client.send(GET % b"whole")
        head, size = await client.reader.readuntil(b"\r\n\r\n"), 0
        assert parse_response(head).headers["content-length"] == "30000000"
        while size < 30_000_000:
            size += len(await client.reader.read(1_500_000))
            await asyncio.sleep(0.01)

    run_scenario(scenario, write_timeout=0.4)


def test_a_rejection_by_the_protocol_is_recorded() -> None:
    records: list[AccessRecord] = []

    async def scenario(server: ListeningServer) -> None:
        for data in (b"nonsense\r\n\r\n", b"BREW /a HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /a HTTP/1.1\r\nx"):
            client = await server.connect()
            await client.send(data)
            response = parse_response(await client.read_rest())
            assert response.status == records[-1].status and response.headers["x-request-id"] == records[-1].request_id

    run_scenario(scenario, limits=SHORT_TIMEOUT, log_access=records.append)
    codes = ["malformed_request", "method_not_allowed", "body_timeout"]
    assert [(each.status, each.code, each.route, each.was_submitted) for each in records] == [
        (status, code, "", False) for status, code in zip((400, 405, 408), codes, strict=True)
    ]


def test_a_broken_body_is_recorded_by_the_application_only_and_answered_with_its_id() -> None:
    records: list[AccessRecord] = []

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(CHUNKED)
        await wait_until(lambda: server.app.paths == ["/a"])
        await client.send(b"zz\r\n")
        assert parse_response(await client.read_rest()).status == 400
        await wait_until(lambda: server.app.disconnected_paths == ["/a"])

    run_scenario(scenario, log_access=records.append)
    assert records == []


# -- invalid data --------------------------------------------------------------------------------------------------

INVALID_DATA = {
    "bytes": b"\x00\x01\x02\x03\r\n\r\n",
    "words": b"hello there\r\n\r\n",
    "tls": TLS_HELLO,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "both lengths": b"POST /a HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "both lengths, the other way": b"POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
    "two lengths": b"POST /a HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "a negative length": b"POST /a HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a huge length": b"POST /a HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    "chunked, and not at last": b"POST /a HTTP/1.1\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
    "a folded header": b"GET /a HTTP/1.1\r\nx: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /a HTTP/1.1\r\ncontent-length : 3\r\n\r\nabc",
    "NUL in a header": b"GET /a HTTP/1.1\r\nx: a\0b\r\n\r\n",
    "NUL in the path": b"GET /a\0b HTTP/1.1\r\n\r\n",
    "a carriage return alone": b"GET /a HTTP/1.1\r\nx: a\rb: c\r\n\r\n",
    "no path": b"GET http://x HTTP/1.1\r\n\r\n",
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel with a path": b"CONNECT /a HTTP/1.1\r\nhost: x\r\n\r\n",
    "a web socket": b"GET /a HTTP/1.1\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
}


@pytest.mark.parametrize("data", INVALID_DATA.values(), ids=INVALID_DATA)
def test_what_is_no_request_is_answered_and_closed(data: bytes) -> None:
    """Cases 59 and 61 of the HTTP contract. The server responds to the next connection as usual."""

    async def scenario(server: ListeningServer) -> None:
        await request_and_check_rejection(server, 400, "malformed_request", data)
        assert server.app.paths == []
        assert (await (await server.connect()).request(GET % b"next")).status == 200

    run_scenario(scenario)


@pytest.mark.parametrize("name", ["bytes", "both lengths", "a web socket", "a folded header"])
def test_what_is_no_request_is_answered_behind_a_good_one_and_byte_by_byte(name: str) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(GET % b"good")).status == 200
        data = INVALID_DATA[name]
        sending = asyncio.create_task(client.send(*(data[at : at + 1] for at in range(len(data))), pause=0.001))
        check_rejection(await client.read_response(), 400, "malformed_request")
        assert await client.read_rest() == b""
        sending.cancel()

    assert run_scenario(scenario).paths == ["/good"]


@pytest.mark.parametrize("size", [b"zz", b"-1", b"1" * 30, b""])
def test_a_bad_chunk_size_ends_the_request(size: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        await request_and_check_rejection(server, 400, "malformed_request", CHUNKED, b"3\r\nabc\r\n%s\r\n" % size)
        await wait_until(lambda: server.app.disconnected_paths == ["/a"])

    run_scenario(scenario)


def test_what_follows_an_answered_body_that_breaks_gets_no_second_answer() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(CHUNKED.replace(b"/a", b"/early"))).status == 404
        await client.send(b"zz\r\n")
        assert await client.read_rest() == b""

    run_scenario(scenario)


def test_a_body_that_breaks_behind_the_beginning_of_its_answer_cuts_it_off() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(CHUNKED.replace(b"/a", b"/eager"))
        assert (await client.reader.readuntil(b"begun")).startswith(b"HTTP/1.1 200")
        await client.send(b"zz\r\n")
        assert (await client.read_rest()).strip() == b""
        await wait_until(lambda: server.app.disconnected_paths == ["/eager"])

    run_scenario(scenario)
