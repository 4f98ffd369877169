"""FaultyProxy: passes bytes on, and stalls, cuts after n bytes, or resets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from failover.faulty_proxy import FaultyProxy

TIMEOUT_SECONDS = 20.0
Scenario = Callable[[FaultyProxy, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes."""
    try:
        while received := await reader.read(100):
            writer.write(received)
    except OSError:
        pass
    finally:
        writer.close()


def run(scenario: Scenario) -> None:
    """Run a scenario with a connection through a proxy to an echoing server."""

    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = FaultyProxy(server.sockets[0].getsockname()[1])
        await proxy.start()
        reader, writer = await connect(proxy)
        try:
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            await scenario(proxy, reader, writer)
        finally:
            writer.close()
            await proxy.stop()
            server.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_SECONDS))


async def connect(proxy: FaultyProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))


def test_a_stalled_proxy_keeps_connections_open_and_passes_nothing_until_it_resumes() -> None:
    async def scenario(proxy: FaultyProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.stall()
        writer.write(b"later")
        _, other = await connect(proxy)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        assert not reader.at_eof()
        proxy.resume()
        assert await reader.readexactly(5) == b"later"
        other.close()

    run(scenario)


def test_a_cut_comes_after_its_bytes_and_new_connections_work() -> None:
    async def scenario(proxy: FaultyProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.cut_after(3)
        writer.write(b"abcdef")
        assert await reader.read() == b"abc"
        reader, writer = await connect(proxy)
        writer.write(b"abcdef")
        assert await reader.readexactly(6) == b"abcdef"
        writer.close()

    run(scenario)


def test_a_reset_is_an_error_for_the_client() -> None:
    async def scenario(proxy: FaultyProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert proxy.num_connections == 1

    run(scenario)
