"""StreamLoad: clients that read one stream after the other, and what is measured while they do."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Self

from chairlift.bench.report.percentiles import percentile
from router_overhead.client_connection import BadResponse, ClientConnection, request
from router_overhead.scripted_replica import ScriptedReplicas
from server_process.process_usage import ProcessTree

RAMP_SECONDS = 0.3
"""Time over which the first requests of the clients are spread."""

END_SECONDS = 15.0
"""Longest time until the streams have ended after a measurement."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What one measurement found.

    Attributes:
        seconds: duration.
        chunks_per_second: chunks that the clients received.
        proxy_core_share: CPU time of the proxy's processes by the duration; None without a proxy.
        generator_core_share: the same of this process, which has the clients and the replicas.
        ttft_seconds: time from each request to its first chunk.
    """

    seconds: float
    chunks_per_second: float
    proxy_core_share: float | None
    generator_core_share: float
    ttft_seconds: tuple[float, ...]

    @property
    def chunks_per_core_second(self) -> float | None:
        """Chunks for a second of CPU time of the proxy; None without a proxy, or without a measured time."""
        return self.chunks_per_second / self.proxy_core_share if self.proxy_core_share else None

    def ttft(self, percent: float) -> float | None:
        """Return a percentile of the times to the first chunk, None without any."""
        return percentile(sorted(self.ttft_seconds), percent) if self.ttft_seconds else None


class StreamLoad:
    """A number of clients, each with one open stream at any time; `async with` starts and ends them."""

    def __init__(
        self, replicas: ScriptedReplicas, ports: Sequence[int], numbers: Iterator[int], *, num_streams: int,
        num_tokens: int, seconds_per_step: float | None, seed: int,
    ) -> None:  # fmt: skip
        """Create clients of these ports; without `seconds_per_step` the replicas send tokens one at a time."""
        self._replicas = replicas
        self._ports = ports
        self._numbers = numbers
        self._num_streams = num_streams
        self._num_tokens = num_tokens
        self._seconds_per_step = seconds_per_step
        self._random = Random(seed)
        self._num_chunks = 0
        self._sent_at: dict[int, float] = {}  # of the requests without a chunk
        self._ttfts: list[tuple[float, float]] = []  # when a request was sent, and the seconds to its first chunk
        self._is_ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[ClientConnection] = []

    async def __aenter__(self) -> Self:
        self._replicas.start_steps(self._seconds_per_step)
        self._tasks = [asyncio.create_task(self._read_streams(at)) for at in range(self._num_streams)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_ending = True
        self._replicas.end_streams()
        done, late = await asyncio.wait(self._tasks, timeout=END_SECONDS)
        for connection in self._connections:
            connection.close()
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._replicas.start_steps(None)
        for task in done:
            task.result()
        if late:
            raise BadResponse(f"{len(late)} of {self._num_streams} streams did not end in {END_SECONDS:g} s")

    async def warm_up(self, seconds: float) -> None:
        """Wait for a number of seconds, and then until each request that was sent in them has its first chunk."""
        await asyncio.sleep(seconds)
        await self._wait_for_first_chunks(time.perf_counter())

    async def measure(self, seconds: float, tree: ProcessTree | None) -> StreamResult:
        """Measure for a number of seconds what the clients receive, and what a proxy's processes use."""
        num_chunks, own_cpu = self._num_chunks, time.process_time()
        proxy_cpu = tree.cpu_seconds() if tree is not None else 0.0
        started_at = time.perf_counter()
        await asyncio.sleep(seconds)
        ended_at = time.perf_counter()
        elapsed = ended_at - started_at
        proxy_share = None if tree is None else (tree.cpu_seconds() - proxy_cpu) / elapsed
        own_share = (time.process_time() - own_cpu) / elapsed
        num_chunks = self._num_chunks - num_chunks
        await self._wait_for_first_chunks(ended_at)  # so that the slow ones count, too
        return StreamResult(
            seconds=elapsed,
            chunks_per_second=num_chunks / elapsed,
            proxy_core_share=proxy_share,
            generator_core_share=own_share,
            ttft_seconds=tuple(ttft for sent_at, ttft in self._ttfts if started_at <= sent_at <= ended_at),
        )

    async def _wait_for_first_chunks(self, sent_until: float) -> None:
        """Wait for the first chunk of each request that was sent until then, at most END_SECONDS."""
        deadline = time.perf_counter() + END_SECONDS
        while any(sent_at <= sent_until for sent_at in self._sent_at.values()):
            if time.perf_counter() > deadline or any(task.done() for task in self._tasks):
                return  # clients end only with an error now
            await asyncio.sleep(0.01)

    async def _read_streams(self, at: int) -> None:
        """Send one request after the other; the first output has a random length, so that the streams end apart."""
        await asyncio.sleep(RAMP_SECONDS * at / self._num_streams)
        connection = await self._connect(at)
        num_tokens = self._random.randint(1, self._num_tokens)
        while not self._is_ending:
            if not connection.is_open:
                connection = await self._connect(at)
            number = next(self._numbers)
            message = request(number, num_tokens, is_streamed=True)
            self._sent_at[number] = time.perf_counter()
            await connection.send(number, message)
            self._num_chunks -= 1  # [DONE]
            num_tokens = self._num_tokens
            if self._seconds_per_step is not None and not self._is_ending:
                # The end of a stream comes with a step of its replica; the next request must not always do so, too.
                await asyncio.sleep(self._random.uniform(0, self._seconds_per_step))

    async def _connect(self, at: int) -> ClientConnection:
        on_events = self._count if self._seconds_per_step is not None else self._count_and_send_next
        connection = await ClientConnection.open(self._ports[at % len(self._ports)], on_events)
        self._connections.append(connection)
        return connection

    def _count(self, number: int, num_events: int) -> None:
        self._num_chunks += num_events
        if (sent_at := self._sent_at.pop(number, None)) is not None:
            self._ttfts.append((sent_at, time.perf_counter() - sent_at))

    def _count_and_send_next(self, number: int, num_events: int) -> None:
        self._count(number, num_events)
        self._replicas.send_next(number)
