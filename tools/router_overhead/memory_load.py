"""measure_memory: the resident memory of a proxy over many short requests that are not streamed."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from router_overhead.client_connection import ClientConnection, request
from server_process.process_usage import ProcessTree

NUM_CLIENTS = 32
NUM_TOKENS = 8
NUM_READINGS = 20
"""Readings of the memory during the requests, evenly spread: one for each 5 %."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory after a number of requests.

    Attributes:
        num_requests: requests that have ended.
        seconds: time since the first request.
        rss_bytes: resident memory of the proxy's processes.
    """

    num_requests: int
    seconds: float
    rss_bytes: int


async def measure_memory(
    port: int, tree: ProcessTree, numbers: Iterator[int], num_requests: int, on_reading: Callable[[MemoryReading], None]
) -> list[MemoryReading]:
    """Send requests from NUM_CLIENTS clients and return a reading before them and after each 5 % of them.

    Raises BadResponse when a request fails.
    """
    started_at = time.perf_counter()
    limits = [num_requests * at // NUM_READINGS for at in range(NUM_READINGS + 1)]
    readings: list[MemoryReading] = []
    num_sent = num_ended = 0

    def read() -> None:
        readings.append(MemoryReading(num_ended, time.perf_counter() - started_at, tree.rss_bytes()))
        on_reading(readings[-1])

    async def send_requests() -> None:
        nonlocal num_sent, num_ended
        connection = await ClientConnection.open(port, lambda number, num_events: None)
        try:
            while num_sent < num_requests:
                num_sent += 1
                if not connection.is_open:
                    connection = await ClientConnection.open(port, lambda number, num_events: None)
                number = next(numbers)
                await connection.send(number, request(number, NUM_TOKENS, is_streamed=False))
                num_ended += 1
                if num_ended >= limits[len(readings)]:
                    read()
        finally:
            connection.close()

    read()
    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(send_requests())
    return readings


def growth(readings: Sequence[MemoryReading]) -> float:
    """Return the largest memory in the last half of the readings divided by the largest one in the second quarter."""
    sizes = [each.rss_bytes for each in readings]
    quarter = len(sizes) // 4
    return max(sizes[2 * quarter :]) / max(sizes[quarter : 2 * quarter])
