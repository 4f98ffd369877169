"""measure_phase: the engine's speed and its CPU time under a constant load, while some watchers read /admin/live."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from api_overhead.running_replica import ADMIN_KEY, RunningReplica
from chairlift.bench.server.http_client import Client, Headers, NoResponse
from server_process.process_usage import ProcessTree

SETTLE_SECONDS = 0.5
"""Seconds between a change of the number of watchers and the start of a measurement."""

PROMPT_TOKENS = 16
MAX_TOKEN_ID = 100
"""Prompts have ids below this one, which every vocabulary has."""

REQUEST_SECONDS = 600.0
FIRST_EVENT_SECONDS = 10.0
BATCH_EVENT = b"event: batch\n"
COUNTERS = ("decode_tokens", "steps")
OK = 200


@dataclass(frozen=True, slots=True)
class Phase:
    """What happened in one measurement.

    Attributes:
        num_watchers: open streams of live data.
        seconds: its duration.
        num_tokens: decode tokens that the engine computed.
        num_steps: steps of the engine.
        engine_cpu_seconds: CPU time of the engine's process, all threads.
        api_cpu_seconds: CPU time of the API server's process.
        num_batch_events: snapshots that all watchers received together.
    """

    num_watchers: int
    seconds: float
    num_tokens: float
    num_steps: float
    engine_cpu_seconds: float
    api_cpu_seconds: float
    num_batch_events: int


class EventCounter:
    """Counts the snapshots of a stream of live data, however its bytes are cut.

    Attributes:
        num_events: snapshots so far.
        has_begun: set with the first one.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.has_begun = asyncio.Event()
        self._tail = b""

    def head(self, status: int, headers: Headers) -> None:
        """Raise ValueError for a response that is no stream."""
        if status != OK:
            raise ValueError(f"the live data have status {status}, expected {OK}")

    def body(self, piece: bytes, now: float) -> None:
        """Count the events that end in a piece."""
        data = self._tail + piece
        self.num_events += data.count(BATCH_EVENT)
        self._tail = data[1 - len(BATCH_EVENT) :]
        if self.num_events:
            self.has_begun.set()


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines until the end of the context. Raises the error of one that failed."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def send_requests(client: Client, model: str, max_tokens: int, random: Random) -> None:
    """Send requests one after the other, each with `max_tokens` / 2 to `max_tokens` output tokens."""
    while True:
        body = {
            "model": model, "prompt": [random.randrange(1, MAX_TOKEN_ID) for _ in range(PROMPT_TOKENS)],
            "max_tokens": random.randint(max_tokens // 2, max_tokens), "ignore_eos": True, "seed": 1,
        }  # fmt: skip
        status, answer = await client.fetch(
            "POST", "/v1/completions", json.dumps(body).encode(), seconds=REQUEST_SECONDS
        )
        if status != OK:
            raise NoResponse(f"a request has status {status}: {answer[:200]!r}")


async def watch(client: Client, counter: EventCounter) -> None:
    """Read live data without end. Raises NoResponse when the stream ends."""
    ended = await client.send(client.request("GET", "/admin/live"), counter, REQUEST_SECONDS)
    raise NoResponse(f"the live data ended: {ended.how.value} {ended.why}".rstrip())


async def measure_phase(replica: RunningReplica, num_watchers: int, seconds: float) -> Phase:
    """Measure for some seconds while so many watchers read; a load must be running. Raises NoResponse."""
    client, counters = replica.client(ADMIN_KEY), [EventCounter() for _ in range(num_watchers)]
    engine = ProcessTree(replica.engine_pid)
    async with running(*(watch(client, each) for each in counters)):
        for each in counters:
            await asyncio.wait_for(each.has_begun.wait(), FIRST_EVENT_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)
        before, events_before = await read_counters(client), sum(each.num_events for each in counters)
        started_at, engine_before, api_before = time.monotonic(), engine.cpu_seconds(), replica.cpu_seconds()
        await asyncio.sleep(seconds)
        after, events_after = await read_counters(client), sum(each.num_events for each in counters)
        elapsed = time.monotonic() - started_at
        engine_seconds, api_seconds = engine.cpu_seconds() - engine_before, replica.cpu_seconds() - api_before
    client.close()
    num_tokens, num_steps = (after[name] - before[name] for name in COUNTERS)
    return Phase(
        num_watchers, elapsed, num_tokens, num_steps, engine_seconds, api_seconds, events_after - events_before
    )


async def read_counters(client: Client) -> dict[str, float]:
    """Return the engine's counters by name. Raises NoResponse for a page without them."""
    status, page = await client.fetch("GET", "/metrics")
    found = dict(re.findall(r"^chairlift_(\w+)_total (\S+)$", page.decode(), re.MULTILINE))
    if status != OK or not found.keys() >= {*COUNTERS}:
        raise NoResponse(f"/metrics has status {status} and not all of {', '.join(COUNTERS)}")
    return {name: float(found[name]) for name in COUNTERS}


async def find_model(client: Client) -> str:
    """Return the name of the served model. Raises NoResponse."""
    status, body = await client.fetch("GET", "/v1/models")
    if status != OK:
        raise NoResponse(f"/v1/models has status {status}")
    return str(json.loads(body)["data"][0]["id"])
