"""StreamLoad and measure_memory against scripted replicas without a proxy between them."""

import asyncio
import os
from itertools import count

import pytest

from router_overhead import stream_load
from router_overhead.client_connection import BadResponse, ClientConnection, request
from router_overhead.memory_load import NUM_READINGS, MemoryReading, growth, measure_memory
from router_overhead.scripted_replica import ScriptedReplicas
from router_overhead.stream_load import StreamLoad, StreamResult
from server_process.process_usage import ProcessTree


async def measure(seconds_per_step: float | None, num_tokens: int) -> tuple[StreamResult, int]:
    """Return what a measurement of 8 streams found, and how many streams are still open behind it."""
    async with ScriptedReplicas(2) as replicas:
        load = StreamLoad(
            replicas, replicas.ports, count(1), num_streams=8, num_tokens=num_tokens, seconds_per_step=seconds_per_step,
            seed=1,
        )  # fmt: skip
        async with load:
            result = await load.measure(0.3, ProcessTree(os.getpid()))
        return result, len(replicas.streams)


@pytest.fixture(autouse=True)
def without_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_load, "RAMP_SECONDS", 0.0)


def test_paced_streams_get_the_chunks_of_their_pace_and_each_request_a_time() -> None:
    result, num_open = asyncio.run(measure(0.02, 5))
    assert 0 < result.chunks_per_second <= 8 / 0.02 * 2  # the first chunks of all streams come at once
    assert 8 <= len(result.ttft_seconds) <= 8 * 0.3 / 0.02 and min(result.ttft_seconds) > 0
    assert num_open == 0


def test_streams_that_get_one_token_at_a_time_run_as_fast_as_they_are_read() -> None:
    result, num_open = asyncio.run(measure(None, 1000))
    assert result.chunks_per_second > 8 / 0.02 * 2
    assert num_open == 0


def test_a_stream_gets_its_next_token_only_when_it_is_asked_for() -> None:
    async def run() -> list[int]:
        counted: list[int] = []
        async with ScriptedReplicas(1) as replicas:
            connection = await ClientConnection.open(
                replicas.ports[0], lambda number, num_events: counted.append(num_events)
            )
            reading = asyncio.create_task(connection.send(7, request(7, 3, is_streamed=True)))
            while not counted:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            before = sum(counted)
            for _ in range(2):
                replicas.send_next(7)
            await asyncio.wait_for(reading, 10)
            connection.close()
        return [before, sum(counted)]

    assert asyncio.run(run()) == [1, 4]  # three tokens and [DONE]


def test_an_error_of_a_proxy_ends_the_measurement() -> None:
    async def run() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")

        async with ScriptedReplicas(1) as replicas, await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            ports = [server.sockets[0].getsockname()[1]]
            async with StreamLoad(
                replicas, ports, count(1), num_streams=1, num_tokens=5, seconds_per_step=0.01, seed=1
            ) as load:  # fmt: skip
                await asyncio.wait_for(load.measure(0.05, None), 10)

    with pytest.raises(BadResponse, match="502"):
        asyncio.run(run())


def test_the_warm_up_ends_when_each_stream_has_its_first_chunk() -> None:
    async def run() -> tuple[float, float]:
        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}]")
            received.set()
            await asyncio.sleep(0.05)
            sent_at.append(asyncio.get_running_loop().time())
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(b"0\r\n\r\n")

        sent_at, received = list[float](), asyncio.Event()
        async with ScriptedReplicas(1) as replicas, await asyncio.start_server(respond, "127.0.0.1", 0) as server:
            load = StreamLoad(
                replicas, [server.sockets[0].getsockname()[1]], count(1), num_streams=1, num_tokens=5,
                seconds_per_step=0.01, seed=1,
            )  # fmt: skip
            async with load:
                await received.wait()
                await load.warm_up(0.0)
                ended_at = asyncio.get_running_loop().time()
            return sent_at[0], ended_at

    sent_at, ended_at = asyncio.run(asyncio.wait_for(run(), 10))
    assert sent_at <= ended_at


def test_memory_is_read_before_the_requests_and_after_each_twentieth_of_them() -> None:
    async def run() -> list[MemoryReading]:
        async with ScriptedReplicas(1) as replicas:
            return await measure_memory(
                replicas.ports[0], ProcessTree(os.getpid()), count(1), 200, lambda reading: None
            )  # fmt: skip

    readings = asyncio.run(run())
    assert [each.num_requests for each in readings] == [200 * at // NUM_READINGS for at in range(NUM_READINGS + 1)]
    assert all(each.rss_bytes > 0 for each in readings)


def test_growth_compares_the_last_half_with_the_second_quarter() -> None:
    sizes = [1, 1, 100, 110, 100, 100, 100, 121]
    assert growth([MemoryReading(at, 0.0, size) for at, size in enumerate(sizes)]) == pytest.approx(1.1)
