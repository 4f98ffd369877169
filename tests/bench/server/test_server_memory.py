"""MemoryWatch: samples a server's memory from its metrics; a server without metrics has no memory results."""

import asyncio

import pytest

from chairlift.bench.server import server_memory
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_memory import MemoryWatch, memory_of
from support_scripted_server import ReceivedRequest, Script, plain_response, respond_with, scripted_server
from support_server import fake_server, run

PAGE = """# HELP chairlift_process_memory_bytes Resident memory
chairlift_process_memory_bytes{process="api"} 6.5e+07
chairlift_process_memory_bytes{process="engine"} 1000
chairlift_process_cpu_seconds_total{process="api"} 3
"""


def test_both_ways_of_saying_it_are_read() -> None:
    assert memory_of(PAGE) == {"api": 65_000_000, "engine": 1000}
    assert memory_of("process_resident_memory_bytes 123\nother 5\n") == {"server": 123}
    assert memory_of("nothing") == {}


async def watched(script: Script) -> MemoryWatch:
    async with scripted_server(script) as server:
        client = Client(Address.of(server.url))
        async with MemoryWatch(client) as memory:
            await asyncio.sleep(0.1)
        client.close()
        assert {seen.path for seen in server.requests} == {"/metrics"}
        return memory


def test_the_first_the_largest_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_memory, "SAMPLE_INTERVAL_SECONDS", 0.01)
    sizes = iter([5, 9, 7])

    async def growing(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(plain_response(200, b"process_resident_memory_bytes %d\n" % next(sizes, 6)))

    assert run(watched(growing)).result() == {"server": {"first": 5, "peak": 9, "last": 6}}


@pytest.mark.parametrize("response", [plain_response(404, b""), plain_response(200, b"# nothing\n"), b"what?\r\n\r\n"])
def test_a_server_that_says_nothing_of_it(response: bytes) -> None:
    assert run(watched(respond_with(response, closes=True))).result() is None


def test_a_real_server_says_it() -> None:
    async def main(url: str) -> MemoryWatch:
        async with MemoryWatch(Client(Address.of(url))) as memory:
            pass
        return memory

    with fake_server() as server:
        result = run(main(server.url)).result()
    assert result["api"]["first"] > 10_000_000
