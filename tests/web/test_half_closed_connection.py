"""Half-closed connections on real sockets: whole responses, and requests of clients that are gone."""

import asyncio

import pytest

from chairlift.web import half_closed_connection
from chairlift.web.half_closed_connection import CONTINUE
from support_http import GET, ListeningServer, RawClient, parse_response, run_scenario, wait_until

POST = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"


async def half_closed(server: ListeningServer, data: bytes) -> RawClient:
    client = await server.connect()
    await client.send(data)
    client.writer.write_eof()
    return client


@pytest.mark.parametrize("data", [GET % b"held", POST % b"held"], ids=["without a body", "with one"])
def test_a_request_that_waits_gets_its_whole_response_and_the_connection_ends(data: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await half_closed(server, data)
        assert await client.reader.readexactly(len(CONTINUE)) == CONTINUE
        await asyncio.sleep(0.6)  # the socket is looked at twice
        server.app.release.set()
        response = parse_response(await client.read_rest())
        assert response.status == 200 and response.object["path"] == "/held"
        assert response.headers["connection"] == "close"
        await wait_until(lambda: not server.state.connections)

    assert run_scenario(scenario).disconnected_paths == []


def test_pipelined_requests_get_all_their_responses() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await half_closed(server, GET % b"held" + POST % b"b" + GET % b"c" + b"GET /cut")
        await wait_until(lambda: server.app.paths == ["/held"])
        server.app.release.set()
        rest = await client.read_rest()
        assert [rest.count(b'"/%s"' % name) for name in (b"held", b"b", b"c")] == [1, 1, 1]

    assert run_scenario(scenario).paths == ["/held", "/b", "/c"]


def test_a_large_response_arrives_whole() -> None:
    async def scenario(server: ListeningServer) -> None:
        server.app.whole_bytes = 5_000_000
        rest = await (await half_closed(server, GET % b"whole")).read_rest()
        assert rest.endswith(b"x" * 5_000_000)

    run_scenario(scenario)


@pytest.mark.parametrize("has_read", [False, True], ids=["before a response", "within a stream"])
def test_a_stream_goes_on_until_the_client_is_gone(has_read: bool) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(GET % b"flood")
        if has_read:
            await client.reader.readexactly(1000)
        client.writer.write_eof()
        await client.reader.readexactly(300_000)
        assert server.app.disconnected_paths == []
        client.close()
        await wait_until(lambda: server.app.disconnected_paths == ["/flood"] and not server.state.connections)

    run_scenario(scenario)


@pytest.mark.parametrize("is_half_closed", [False, True])
def test_a_client_that_is_gone_is_noticed_though_nothing_is_sent(
    is_half_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_closed_connection, "CONTINUE_SECONDS", 0.5)

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(GET % b"silent")
        await wait_until(lambda: server.app.paths == ["/silent"])
        if is_half_closed:
            client.writer.write_eof()
            await client.reader.readexactly(len(CONTINUE))
            client.writer.transport.abort()
        else:
            client.close()
        await wait_until(lambda: server.app.disconnected_paths == ["/silent"] and not server.state.connections)

    run_scenario(scenario)


@pytest.mark.parametrize("data", [
    b"", b"GET /held", POST[:-1] % b"held", b"GET /silent HTTP/1.0\r\n\r\n",
], ids=["idle", "head", "body", "HTTP/1.0"])  # fmt: skip
def test_without_a_whole_request_the_connection_ends(data: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await half_closed(server, data)
        assert await client.read_rest() == b""
        await wait_until(lambda: not server.state.connections)

    run_scenario(scenario)


def test_a_stream_of_http_1_0_goes_on() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(b"GET /flood HTTP/1.0\r\n\r\n")
        await client.reader.readexactly(1000)
        client.writer.write_eof()
        await client.reader.readexactly(300_000)
        assert server.app.disconnected_paths == []

    run_scenario(scenario)
