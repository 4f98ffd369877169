"""bounded_http_protocol.py on real sockets: pipelined requests, and requests to upgrade to HTTP/2."""

import asyncio

import pytest

from chairlift.web.bounded_http_protocol import HeadLimits
from support_http import CHUNKED, GET, H2C, ListeningServer, run_scenario, wait_until


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_pipelined_requests_are_answered_in_order(size: int) -> None:
    """Case 56 of the HTTP contract."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        post = b"POST /%d HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
        data = GET % b"held" + b"".join(GET % b"%d" % n if n % 2 else post % n for n in range(50))
        sending = asyncio.create_task(client.send(*(data[at : at + size] for at in range(0, len(data), size))))
        await wait_until(lambda: server.app.paths == ["/held"])
        server.app.release.set()
        responses = [(await client.read_response()).object for _ in range(51)]
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
    """The client would take an error response for the response of its open request."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(GET % b"flood")
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await client.send(between + garbage, pause=0.01)
        rest = await client.read_rest()
        assert rest and set(rest) <= set(b"3e8x\r\n")
        await wait_until(lambda: server.app.disconnected_paths == ["/flood"])

    assert run_scenario(scenario, limits=HeadLimits(bytes=500)).paths == ["/flood"]


def test_a_queued_body_that_breaks_is_not_answered_in_place_of_who_is_served() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(GET % b"held" + CHUNKED + b"zz\r\n")
        assert await client.read_rest() == b""

    assert run_scenario(scenario).paths in (["/held"], [])


@pytest.mark.parametrize("behind", [b"", GET % b"queued", GET % b"queued" * 3])
def test_a_client_that_leaves_is_disconnected_though_other_requests_are_queued(behind: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(GET % b"flood" + behind)
        await client.reader.readexactly(1000)
        client.close()
        await wait_until(lambda: server.app.disconnected_paths == ["/flood"])

    assert run_scenario(scenario).paths == ["/flood"]


POST_H2C = b"POST /%s HTTP/1.1\r\nhost: x\r\n" + H2C + b"content-length: 11\r\n\r\nhello there"
CHUNKED_H2C = CHUNKED[:-2] + H2C + b"\r\n5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1 << 20, 100, 11, 1])
@pytest.mark.parametrize("data", [POST_H2C % b"a", CHUNKED_H2C], ids=["counted", "chunked"])
def test_a_wish_for_http2_is_ignored_and_the_body_is_read(data: bytes, size: int) -> None:
    """Java's HTTP client asks for HTTP/2 with its first request, even if it has a body."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        for _ in range(2):
            response = await client.request(*(data[at : at + size] for at in range(0, len(data), size)))
            assert (response.status, response.object["body"]) == (200, "hello there")
        assert (await client.request(GET % b"b")).object["path"] == "/b"

    assert run_scenario(scenario).paths == ["/a", "/a", "/b"]


def test_wishes_for_http2_can_be_pipelined() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(b"".join(POST_H2C % b"%d" % number for number in range(20)) + GET % b"last")
        paths = [(await client.read_response()).object["path"] for _ in range(21)]
        assert paths == [*(f"/{number}" for number in range(20)), "/last"]

    run_scenario(scenario)


def test_a_wish_for_http2_changes_nothing_else_of_the_request() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        headers = H2C.replace(b"upgrade, ", b"close, upgrade, ")
        response = await client.request(b"PATCH /a?b=c HTTP/1.1\r\nhost: x\r\n" + headers + b"x-a: b: c\r\n\r\n")
        assert response.object["method"] == "PATCH"
        assert response.object["headers"]["x-a"] == "b: c"
        assert response.headers["connection"] == "close"
        assert await client.read_rest() == b""

    run_scenario(scenario)
