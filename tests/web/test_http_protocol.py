"""HTTP on real sockets: heads that are too large, too slow or none at all, pipelines, upgrades, trailers, idling."""

import asyncio
import contextlib
import gc
import socket

import pytest
import uvicorn

from chairlift.web.access_log import AccessRecord
from chairlift.web.http_protocol import HeadLimits
from support_http import (
    BRISK,
    CALM,
    CHUNKED,
    GET,
    H2C,
    PATIENCE,
    TLS_HELLO,
    Answer,
    App,
    ListeningServer,
    RawClient,
    configured,
    parsed,
    run_scenario,
    until,
)


def check_refusal(response: Answer, status: int, code: str) -> None:
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    assert response.headers["x-request-id"].startswith("req-")
    error = response.object["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert error["message"]


async def refused(site: ListeningServer, status: int, code: str, *pieces: bytes) -> Answer:
    """Send, and see the one answer and then the end of the connection."""
    peer = await site.peer()
    response = await peer.request(*pieces)
    check_refusal(response, status, code)
    assert await peer.read_rest() == b""
    return response


# -- ordinary life -------------------------------------------------------------------------------------------------


def test_requests_follow_each_other_on_a_connection() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        for number in range(3):
            assert (await peer.request(GET % b"%d" % number)).object["path"] == f"/{number}"
        assert len(site.state.connections) == 1

    assert run_scenario(scenario).heard == ["/0", "/1", "/2"]


def test_a_uvicorn_server_takes_the_protocol() -> None:
    async def whole() -> None:
        server = uvicorn.Server(configured(App(), CALM, 5))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        peer = RawClient(*await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()))
        assert (await peer.request(GET % b"a")).status == 200
        check_refusal(await peer.request(b"\0\r\n\r\n"), 400, "malformed_request")
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))


def test_a_connection_goes_on_after_an_ordinary_400() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(GET % b"bad")).status == 400
        assert (await peer.request(b"POST /bad HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc")).status == 400
        assert (await peer.request(GET % b"good")).status == 200

    run_scenario(scenario)


def test_a_body_in_pieces_is_not_bound_by_the_heads_time() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(b"POST /a HTTP/1.1\r\ncontent-length: 20\r\n\r\n")
        await peer.send(*[b"x"] * 20, pause=0.01)
        assert (await peer.read_response()).object["body"] == "x" * 20

    run_scenario(scenario, limits=HeadLimits(seconds=0.05))


def test_a_body_is_not_bound_by_the_heads_bytes() -> None:
    async def scenario(site: ListeningServer) -> None:
        for head, end in ((b"POST /a HTTP/1.1\r\ncontent-length: 300000\r\n\r\n", b""), (CHUNKED, b"0\r\n\r\n")):
            peer = await site.peer()
            piece = b"x" * 1000
            pieces = [piece if not end else b"3e8\r\n%s\r\n" % piece] * 300
            assert len((await peer.request(head, *pieces, end)).object["body"]) == 300_000

    run_scenario(scenario, limits=HeadLimits(bytes=2000))


def test_a_hundred_tiny_chunks_in_a_hundred_packets_are_a_body() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        response = await peer.request(CHUNKED, *[b"1\r\nx\r\n"] * 100, b"0\r\n\r\n")
        assert response.object["body"] == "x" * 100

    run_scenario(scenario, limits=HeadLimits(bytes=150))


def test_expect_100_continue() -> None:
    async def scenario(site: ListeningServer) -> None:
        head = b"POST /%s HTTP/1.1\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
        peer = await site.peer()
        assert (await peer.request(head % b"a")).status == 100
        assert (await peer.request(b"abc")).object["body"] == "abc"
        assert (await peer.request(head % b"early")).status == 404

    run_scenario(scenario)


def test_http_1_0_ends_with_its_answer() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(b"GET /a HTTP/1.0\r\n\r\n")).status == 200
        assert await peer.read_rest() == b""

    run_scenario(scenario)


def test_a_client_that_closes_a_direction_is_disconnected() -> None:
    """57."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\na")
        peer.writer.write_eof()
        await until(lambda: site.app.gone == ["/a"])

    run_scenario(scenario)


def test_a_client_that_does_not_read_can_be_dropped_with_its_buffered_data() -> None:
    """58: closing in the ordinary way would wait for the reader."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        site.app.flood = 1_000_000
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(GET % b"flood")
        await until(lambda: any(connection.flow.write_paused for connection in site.state.connections))  # type: ignore[union-attr]
        assert site.app.abort is not None
        site.app.abort()
        await until(lambda: not site.state.connections and site.app.gone == ["/flood"])

    run_scenario(scenario)


def test_a_client_that_never_reads_a_full_response_is_dropped() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        site.app.whole = 30_000_000
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(GET % b"whole")
        await until(lambda: site.app.heard == ["/whole"] and not site.state.connections)

    run_scenario(scenario, write_seconds=0.2)


def test_a_client_that_reads_a_full_response_slowly_gets_all_of_it() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        site.app.whole = 30_000_000
        await peer.send(GET % b"whole")
        head, size = await peer.reader.readuntil(b"\r\n\r\n"), 0
        assert parsed(head).headers["content-length"] == "30000000"
        while size < 30_000_000:
            size += len(await peer.reader.read(1_500_000))
            await asyncio.sleep(0.01)

    run_scenario(scenario, write_seconds=0.4)


def test_a_rejection_by_the_protocol_is_recorded() -> None:
    result: list[AccessRecord] = []

    async def scenario(site: ListeningServer) -> None:
        for data in (b"nonsense\r\n\r\n", b"BREW /a HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /a HTTP/1.1\r\nx"):
            peer = await site.peer()
            await peer.send(data)
            response = parsed(await peer.read_rest())
            assert response.status == result[-1].status and response.headers["x-request-id"] == result[-1].request_id

    run_scenario(scenario, limits=BRISK, seen=result.append)
    codes = ["malformed_request", "method_not_allowed", "body_timeout"]
    assert [(each.status, each.code, each.route, each.begun) for each in result] == [
        (status, code, "", False) for status, code in zip((400, 405, 408), codes, strict=True)
    ]


def test_a_broken_body_is_recorded_by_the_application_only_and_answered_with_its_id() -> None:
    result: list[AccessRecord] = []

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(CHUNKED)
        await until(lambda: site.app.heard == ["/a"])
        await peer.send(b"zz\r\n")
        assert parsed(await peer.read_rest()).status == 400
        await until(lambda: site.app.gone == ["/a"])

    run_scenario(scenario, seen=result.append)
    assert result == []


# -- what is no request --------------------------------------------------------------------------------------------

NO_REQUESTS = {
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


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_is_answered_and_closed(data: bytes) -> None:
    """Bytes 59 and 61; the next connection is served."""

    async def scenario(site: ListeningServer) -> None:
        await refused(site, 400, "malformed_request", data)
        assert site.app.heard == []
        assert (await (await site.peer()).request(GET % b"next")).status == 200

    run_scenario(scenario)


@pytest.mark.parametrize("name", ["bytes", "both lengths", "a web socket", "a folded header"])
def test_what_is_no_request_is_answered_behind_a_good_one_and_byte_by_byte(name: str) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(GET % b"good")).status == 200
        data = NO_REQUESTS[name]
        sending = asyncio.create_task(peer.send(*(data[at : at + 1] for at in range(len(data))), pause=0.001))
        check_refusal(await peer.read_response(), 400, "malformed_request")
        assert await peer.read_rest() == b""
        sending.cancel()

    assert run_scenario(scenario).heard == ["/good"]


@pytest.mark.parametrize("size", [b"zz", b"-1", b"1" * 30, b""])
def test_a_bad_chunk_size_ends_the_request(size: bytes) -> None:
    async def scenario(site: ListeningServer) -> None:
        await refused(site, 400, "malformed_request", CHUNKED, b"3\r\nabc\r\n%s\r\n" % size)
        await until(lambda: site.app.gone == ["/a"])

    run_scenario(scenario)


def test_what_follows_an_answered_body_that_breaks_gets_no_second_answer() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(CHUNKED.replace(b"/a", b"/early"))).status == 404
        await peer.send(b"zz\r\n")
        assert await peer.read_rest() == b""

    run_scenario(scenario)


def test_a_body_that_breaks_behind_the_beginning_of_its_answer_cuts_it_off() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(CHUNKED.replace(b"/a", b"/eager"))
        assert (await peer.reader.readuntil(b"begun")).startswith(b"HTTP/1.1 200")
        await peer.send(b"zz\r\n")
        assert (await peer.read_rest()).strip() == b""
        await until(lambda: site.app.gone == ["/eager"])

    run_scenario(scenario)


# -- heads that are too large --------------------------------------------------------------------------------------


def poured(port: int, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send 60 MB with a blocking socket, or until the server reads no more; returns the bytes sent, and the response.

    The answer can be read although the connection was reset behind it.
    """
    sent, came = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(begin)
            while sent < 60_000_000:
                sent += client.send(piece)
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                came += data
    return sent, came


@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET /a HTTP/1.1\r\nx: ", b"GET /a HTTP/1.1\r\n"], ids=["line", "value", "name"]
)
def test_a_head_of_60_megabytes_is_not_read(begin: bytes) -> None:
    """16; what was taken lies in the buffers of the two sockets."""

    async def scenario(site: ListeningServer) -> None:
        sent, came = await asyncio.to_thread(poured, site.port, begin, b"a" * 60_000)
        assert sent < 30_000_000
        check_refusal(parsed(came), 431, "headers_too_large")
        await until(lambda: not site.state.connections)

    assert run_scenario(scenario).heard == []


def test_ten_thousand_headers_are_refused() -> None:
    """16."""

    async def scenario(site: ListeningServer) -> None:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
        _, came = await asyncio.to_thread(poured, site.port, b"GET /a HTTP/1.1\r\n", lines)
        check_refusal(parsed(came), 431, "headers_too_large")

    assert run_scenario(scenario).heard == []


def test_a_refused_head_leaves_nothing_for_the_garbage_collector() -> None:
    async def scenario(site: ListeningServer) -> None:
        head = b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * 6 + b"\r\n"
        await refused(site, 431, "headers_too_large", head)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await refused(site, 431, "headers_too_large", head)
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert not [each for each in gc.garbage if type(each).__name__ == "BoundedProtocol"]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    run_scenario(scenario, limits=HeadLimits(lines=5))


@pytest.mark.parametrize(("lines", "is_taken"), [(5, True), (6, False)])
def test_the_limit_of_lines_is_exact(lines: int, is_taken: bool) -> None:
    async def scenario(site: ListeningServer) -> None:
        head = b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * lines + b"\r\n"
        if is_taken:
            assert (await (await site.peer()).request(head)).status == 200
        else:
            said = (await refused(site, 431, "headers_too_large", head)).object["error"]["message"]
            assert "more than 5 lines, the limit is 5" in said

    run_scenario(scenario, limits=HeadLimits(lines=5))


@pytest.mark.parametrize("cut", [None, 1, 60, 199], ids=["in one piece", "cut at 1", "cut at 60", "cut at 199"])
@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("place", ["path", "header"])
def test_the_limit_of_bytes_is_exact_however_the_head_comes(cut: int | None, excess: int, place: str) -> None:
    path, rest = b"GET /%s HTTP/1.1\r\n", b"x: %s\r\n\r\n"
    room = 200 + excess - len(path % b"") - len(rest % b"")
    head = path % (b"a" * (room if place == "path" else 0)) + rest % (b"a" * (room if place == "header" else 0))
    assert len(head) == 200 + excess

    async def scenario(site: ListeningServer) -> None:
        pieces = [head] if cut is None else [head[:cut], head[cut:]]
        if excess:
            peer = await site.peer()
            await peer.send(*pieces, pause=0.02)
            check_refusal(await peer.read_response(), 431, "headers_too_large")
            assert site.app.heard == []
        else:
            assert (await (await site.peer()).request(*pieces)).status == 200

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_a_second_head_has_its_own_limit() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        head = b"GET /a HTTP/1.1\r\nx: %s\r\n\r\n" % (b"a" * 100)
        for _ in range(5):
            assert (await peer.request(head[:70], head[70:])).status == 200
        await peer.send(head * 5)
        for _ in range(5):
            assert (await peer.read_response()).status == 200
        check_refusal(await peer.request(b"GET /" + b"a" * 300), 431, "headers_too_large")

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_what_ends_a_body_does_not_count_to_the_next_head() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        head = GET % (b"b" * 100)
        for _ in range(3):
            response = await peer.request(CHUNKED + b"3\r\nabc\r\n", b"0\r\nx: %s\r\n\r\n" % (b"y" * 150))
            assert response.object["body"] == "abc"
            await peer.send(head[:-2], pause=0.01)
            assert (await peer.request(head[-2:])).status == 200

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_endless_trailers_are_not_read() -> None:
    async def scenario(site: ListeningServer) -> None:
        begin = CHUNKED + b"3\r\nabc\r\n0\r\nx-trailer: "
        sent, came = await asyncio.to_thread(poured, site.port, begin, b"a" * 60_000)
        assert sent < 30_000_000
        check_refusal(parsed(came), 431, "headers_too_large")
        await until(lambda: site.app.gone == ["/a"])

    run_scenario(scenario)


def test_trailers_are_no_headers() -> None:
    """A proxy that checks headers in front of this server has not seen these."""

    async def scenario(site: ListeningServer) -> None:
        response = await (await site.peer()).request(CHUNKED + b"3\r\nabc\r\n0\r\nauthorization: Bearer stolen\r\n\r\n")
        assert response.object["body"] == "abc"
        assert set(response.object["headers"]) == {"host", "transfer-encoding"}

    run_scenario(scenario)


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_drips_gets_408(is_first: bool) -> None:
    """60; every byte comes in time, the head does not."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        if not is_first:
            assert (await peer.request(GET % b"a")).status == 200
        clock = asyncio.get_running_loop().time
        began = clock()

        async def drip() -> None:
            await peer.send(b"GET /b HTTP/1.1\r\nx: ")
            while True:
                await peer.send(b"y", pause=0.02)

        dripping = asyncio.create_task(drip())
        response = await peer.read_response()
        dripping.cancel()
        check_refusal(response, 408, "body_timeout")
        assert "within 0.3 s" in response.object["error"]["message"]
        assert response.headers["x-should-retry"] == "false"
        assert clock() - began >= 0.25
        await until(lambda: not site.state.connections)

    assert run_scenario(scenario, limits=BRISK).heard == ([] if is_first else ["/a"])


def test_a_connection_that_says_nothing_is_closed_without_an_answer() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert await peer.read_rest() == b""

    run_scenario(scenario, limits=BRISK)


def test_an_idle_connection_is_closed_without_an_answer() -> None:
    """60."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(GET % b"a")).status == 200
        assert await peer.read_rest() == b""

    run_scenario(scenario, idle=0.2)


def test_a_connection_is_idle_too_when_its_body_came_behind_the_answer() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        head = b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n"
        for _ in range(2):
            assert (await peer.request(head)).status == 404
            await peer.send(b"a", b"bc")
        assert (await peer.request(GET % b"a")).status == 200
        assert (await peer.request(head)).status == 404
        await peer.send(b"abc")
        assert await peer.read_rest() == b""

    run_scenario(scenario, idle=0.2)


def test_an_idle_connection_has_its_whole_time_behind_a_late_body() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n")).status == 404
        await peer.send(b"abc", pause=0.3)
        assert (await peer.request(GET % b"a")).status == 200

    run_scenario(scenario, limits=HeadLimits(seconds=0.1))


def test_a_body_that_drips_behind_its_answer_ends_the_connection() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(b"POST /early HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")).status == 404

        async def drip() -> None:
            while True:
                await peer.send(b"y", pause=0.02)

        dripping = asyncio.create_task(drip())
        assert await peer.read_rest() == b""
        dripping.cancel()

    run_scenario(scenario, limits=BRISK)


def test_an_idle_time_does_not_end_an_answer() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n")).status == 404
        await peer.send(b"abc" + GET % b"held")
        await asyncio.sleep(0.4)
        site.app.gate.set()
        assert (await peer.read_response()).object["path"] == "/held"

    run_scenario(scenario, limits=BRISK, idle=0.2)


def test_idle_connections_block_no_other_client() -> None:
    async def scenario(site: ListeningServer) -> None:
        peers = [await site.peer() for _ in range(200)]
        await until(lambda: len(site.state.connections) == 200)
        assert (await (await site.peer()).request(GET % b"a")).status == 200
        assert [await peer.read_rest() for peer in peers] == [b""] * 200
        await until(lambda: not site.state.connections)

    run_scenario(scenario, limits=HeadLimits(seconds=1.0), idle=1.0)


# -- pipelines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_pipelined_requests_are_answered_in_order(size: int) -> None:
    """56."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        post = b"POST /%d HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
        data = GET % b"held" + b"".join(GET % b"%d" % n if n % 2 else post % n for n in range(50))
        sending = asyncio.create_task(peer.send(*(data[at : at + size] for at in range(0, len(data), size))))
        await until(lambda: site.app.heard == ["/held"])
        site.app.gate.set()
        responses = [(await peer.read_response()).object for _ in range(51)]
        assert [response["path"] for response in responses] == ["/held", *(f"/{number}" for number in range(50))]
        assert [response["body"] for response in responses[1:]] == ["" if number % 2 else "abc" for number in range(50)]
        await sending

    run_scenario(scenario)


@pytest.mark.parametrize("between", [b"", GET % b"queued"], ids=["right behind", "behind a queued one"])
@pytest.mark.parametrize(
    "garbage",
    [b"\0\0\0\0\r\n\r\n", b"GET /" + b"a" * 1000 + b" HTTP/1.1\r\n\r\n", b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * 200],
)
def test_garbage_behind_an_open_request_ends_it_without_an_answer(between: bytes, garbage: bytes) -> None:
    """An answer to the garbage would be taken for the open request's own."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(GET % b"flood")
        assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await peer.send(between + garbage, pause=0.01)
        rest = await peer.read_rest()
        assert rest and set(rest) <= set(b"3e8x\r\n")
        await until(lambda: site.app.gone == ["/flood"])

    assert run_scenario(scenario, limits=HeadLimits(bytes=500)).heard == ["/flood"]


def test_a_queued_body_that_breaks_is_not_answered_in_place_of_who_is_served() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(GET % b"held" + CHUNKED + b"zz\r\n")
        assert await peer.read_rest() == b""

    assert run_scenario(scenario).heard in (["/held"], [])


@pytest.mark.parametrize("behind", [b"", GET % b"queued", GET % b"queued" * 3])
def test_a_client_that_leaves_is_disconnected_though_other_requests_are_queued(behind: bytes) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(GET % b"flood" + behind)
        await peer.reader.readexactly(1000)
        peer.close()
        await until(lambda: site.app.gone == ["/flood"])

    assert run_scenario(scenario).heard == ["/flood"]


# -- upgrades ------------------------------------------------------------------------------------------------------

POST_H2C = b"POST /%s HTTP/1.1\r\nhost: x\r\n" + H2C + b"content-length: 11\r\n\r\nhello there"
CHUNKED_H2C = CHUNKED[:-2] + H2C + b"\r\n5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1 << 20, 100, 11, 1])
@pytest.mark.parametrize("data", [POST_H2C % b"a", CHUNKED_H2C], ids=["counted", "chunked"])
def test_a_wish_for_http2_is_ignored_and_the_body_is_read(data: bytes, size: int) -> None:
    """Java's own client wishes it with every first request, bodies included."""

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        for _ in range(2):
            response = await peer.request(*(data[at : at + size] for at in range(0, len(data), size)))
            assert (response.status, response.object["body"]) == (200, "hello there")
        assert (await peer.request(GET % b"b")).object["path"] == "/b"

    assert run_scenario(scenario).heard == ["/a", "/a", "/b"]


def test_wishes_for_http2_can_be_pipelined() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(b"".join(POST_H2C % b"%d" % number for number in range(20)) + GET % b"last")
        paths = [(await peer.read_response()).object["path"] for _ in range(21)]
        assert paths == [*(f"/{number}" for number in range(20)), "/last"]

    run_scenario(scenario)


def test_a_wish_for_http2_changes_nothing_else_of_the_request() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        wish = H2C.replace(b"upgrade, ", b"close, upgrade, ")
        response = await peer.request(b"PATCH /a?b=c HTTP/1.1\r\nhost: x\r\n" + wish + b"x-a: b: c\r\n\r\n")
        assert response.object["method"] == "PATCH"
        assert response.object["headers"]["x-a"] == "b: c"
        assert response.headers["connection"] == "close"
        assert await peer.read_rest() == b""

    run_scenario(scenario)
