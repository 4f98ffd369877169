"""bounded_http_protocol.py on real sockets: header blocks and trailers that are too large."""

import asyncio
import contextlib
import gc
import socket

import pytest

from chairlift.web.bounded_http_protocol import HeadLimits
from support_http import (
    CHUNKED,
    GET,
    TIMEOUT_SECONDS,
    ListeningServer,
    check_rejection,
    parse_response,
    request_and_check_rejection,
    run_scenario,
    wait_until,
)


def send_60_megabytes(port: int, begin: bytes, part: bytes) -> tuple[int, bytes]:
    """Send up to 60 MB with a blocking socket, until the server reads no more.

    Returns the number of bytes sent, and the response. It can be read although the connection is reset after it.
    """
    num_sent, received = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(begin)
            while num_sent < 60_000_000:
                num_sent += client.send(part)
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                received += data
    return num_sent, received


@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET /a HTTP/1.1\r\nx: ", b"GET /a HTTP/1.1\r\n"], ids=["line", "value", "name"]
)
def test_a_head_of_60_megabytes_is_not_read(begin: bytes) -> None:
    """Case 16 of the HTTP contract. Sent bytes are in the buffers of the two sockets."""

    async def scenario(server: ListeningServer) -> None:
        num_sent, received = await asyncio.to_thread(send_60_megabytes, server.port, begin, b"a" * 60_000)
        assert num_sent < 30_000_000
        check_rejection(parse_response(received), 431, "headers_too_large")
        await wait_until(lambda: not server.state.connections)

    assert run_scenario(scenario).paths == []


def test_ten_thousand_headers_are_refused() -> None:
    """Case 16 of the HTTP contract."""

    async def scenario(server: ListeningServer) -> None:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
        _, received = await asyncio.to_thread(send_60_megabytes, server.port, b"GET /a HTTP/1.1\r\n", lines)
        check_rejection(parse_response(received), 431, "headers_too_large")

    assert run_scenario(scenario).paths == []


def test_a_refused_head_leaves_nothing_for_the_garbage_collector() -> None:
    async def scenario(server: ListeningServer) -> None:
        head = b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * 6 + b"\r\n"
        await request_and_check_rejection(server, 431, "headers_too_large", head)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await request_and_check_rejection(server, 431, "headers_too_large", head)
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert not [each for each in gc.garbage if type(each).__name__ == "BoundedProtocol"]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    run_scenario(scenario, limits=HeadLimits(lines=5))


@pytest.mark.parametrize(("lines", "fits"), [(5, True), (6, False)])
def test_the_limit_of_lines_is_exact(lines: int, fits: bool) -> None:
    async def scenario(server: ListeningServer) -> None:
        head = b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * lines + b"\r\n"
        if fits:
            assert (await (await server.connect()).request(head)).status == 200
        else:
            message = (await request_and_check_rejection(server, 431, "headers_too_large", head)).object["error"][
                "message"
            ]
            assert "more than 5 lines, the limit is 5" in message

    run_scenario(scenario, limits=HeadLimits(lines=5))


@pytest.mark.parametrize("cut", [None, 1, 60, 199], ids=["in one piece", "cut at 1", "cut at 60", "cut at 199"])
@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("location", ["path", "header"])
def test_the_limit_of_bytes_is_exact_however_the_head_comes(cut: int | None, excess: int, location: str) -> None:
    path, rest = b"GET /%s HTTP/1.1\r\n", b"x: %s\r\n\r\n"
    max_waiting = 200 + excess - len(path % b"") - len(rest % b"")
    head = path % (b"a" * (max_waiting if location == "path" else 0)) + rest % (
        b"a" * (max_waiting if location == "header" else 0)
    )
    assert len(head) == 200 + excess

    async def scenario(server: ListeningServer) -> None:
        parts = [head] if cut is None else [head[:cut], head[cut:]]
        if excess:
            client = await server.connect()
            await client.send(*parts, pause=0.02)
            check_rejection(await client.read_response(), 431, "headers_too_large")
            assert server.app.paths == []
        else:
            assert (await (await server.connect()).request(*parts)).status == 200

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_a_second_head_has_its_own_limit() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        head = b"GET /a HTTP/1.1\r\nx: %s\r\n\r\n" % (b"a" * 100)
        for _ in range(5):
            assert (await client.request(head[:70], head[70:])).status == 200
        await client.send(head * 5)
        for _ in range(5):
            assert (await client.read_response()).status == 200
        check_rejection(await client.request(b"GET /" + b"a" * 300), 431, "headers_too_large")

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_what_ends_a_body_does_not_count_to_the_next_head() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        head = GET % (b"b" * 100)
        for _ in range(3):
            response = await client.request(CHUNKED + b"3\r\nabc\r\n", b"0\r\nx: %s\r\n\r\n" % (b"y" * 150))
            assert response.object["body"] == "abc"
            await client.send(head[:-2], pause=0.01)
            assert (await client.request(head[-2:])).status == 200

    run_scenario(scenario, limits=HeadLimits(bytes=200))


def test_endless_trailers_are_not_read() -> None:
    async def scenario(server: ListeningServer) -> None:
        begin = CHUNKED + b"3\r\nabc\r\n0\r\nx-trailer: "
        num_sent, received = await asyncio.to_thread(send_60_megabytes, server.port, begin, b"a" * 60_000)
        assert num_sent < 30_000_000
        check_rejection(parse_response(received), 431, "headers_too_large")
        await wait_until(lambda: server.app.disconnected_paths == ["/a"])

    run_scenario(scenario)


def test_trailers_are_no_headers() -> None:
    """A proxy that checks headers in front of this server does not check trailers."""

    async def scenario(server: ListeningServer) -> None:
        response = await (await server.connect()).request(
            CHUNKED + b"3\r\nabc\r\n0\r\nauthorization: Bearer stolen\r\n\r\n"
        )
        assert response.object["body"] == "abc"
        assert set(response.object["headers"]) == {"host", "transfer-encoding"}

    run_scenario(scenario)
