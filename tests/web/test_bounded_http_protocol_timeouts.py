"""bounded_http_protocol.py on real sockets: slow header blocks, slow bodies and idle connections."""

import asyncio

import pytest

from chairlift.web.bounded_http_protocol import HeadLimits
from support_http import GET, SHORT_TIMEOUT, ListeningServer, check_rejection, run_scenario, wait_until


@pytest.mark.share(1)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_drips_gets_408(is_first: bool) -> None:
    """Case 60 of the HTTP contract. Each byte is in time, the whole header block is not."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        if not is_first:
            assert (await client.request(GET % b"a")).status == 200
        clock = asyncio.get_running_loop().time
        start = clock()

        async def send_slowly() -> None:
            await client.send(b"GET /b HTTP/1.1\r\nx: ")
            while True:
                await client.send(b"y", pause=0.02)

        sending = asyncio.create_task(send_slowly())
        response = await client.read_response()
        sending.cancel()
        check_rejection(response, 408, "body_timeout")
        assert "within 0.3 s" in response.object["error"]["message"]
        assert response.headers["x-should-retry"] == "false"
        assert clock() - start >= 0.25
        await wait_until(lambda: not server.state.connections)

    assert run_scenario(scenario, limits=SHORT_TIMEOUT).paths == ([] if is_first else ["/a"])


def test_a_connection_that_says_nothing_is_closed_without_an_answer() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert await client.read_rest() == b""

    run_scenario(scenario, limits=SHORT_TIMEOUT)


def test_an_idle_connection_is_closed_without_an_answer() -> None:
    """Case 60 of the HTTP contract."""

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(GET % b"a")).status == 200
        assert await client.read_rest() == b""

    run_scenario(scenario, idle=0.2)


def test_a_connection_is_idle_too_when_its_body_came_behind_the_answer() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        head = b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n"
        for _ in range(2):
            assert (await client.request(head)).status == 404
            await client.send(b"a", b"bc")
        assert (await client.request(GET % b"a")).status == 200
        assert (await client.request(head)).status == 404
        await client.send(b"abc")
        assert await client.read_rest() == b""

    run_scenario(scenario, idle=0.2)


def test_an_idle_connection_has_its_whole_time_behind_a_late_body() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n")).status == 404
        await client.send(b"abc", pause=0.3)
        assert (await client.request(GET % b"a")).status == 200

    run_scenario(scenario, limits=HeadLimits(seconds=0.1))


def test_a_body_that_drips_behind_its_answer_ends_the_connection() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(b"POST /early HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")).status == 404

        async def send_slowly() -> None:
            while True:
                await client.send(b"y", pause=0.02)

        sending = asyncio.create_task(send_slowly())
        assert await client.read_rest() == b""
        sending.cancel()

    run_scenario(scenario, limits=SHORT_TIMEOUT)


def test_an_idle_time_does_not_end_an_answer() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n")).status == 404
        await client.send(b"abc" + GET % b"held")
        await asyncio.sleep(0.4)
        server.app.release.set()
        assert (await client.read_response()).object["path"] == "/held"

    run_scenario(scenario, limits=SHORT_TIMEOUT, idle=0.2)


def test_idle_connections_block_no_other_client() -> None:
    async def scenario(server: ListeningServer) -> None:
        clients = [await server.connect() for _ in range(200)]
        await wait_until(lambda: len(server.state.connections) == 200)
        assert (await (await server.connect()).request(GET % b"a")).status == 200
        assert [await client.read_rest() for client in clients] == [b""] * 200
        await wait_until(lambda: not server.state.connections)

    run_scenario(scenario, limits=HeadLimits(seconds=1.0), idle=1.0)
