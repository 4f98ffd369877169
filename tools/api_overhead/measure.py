"""Measurements: chunk rate of streams, with and without metric scrapes, and the time of requests outside the engine."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from itertools import count, pairwise
from random import Random
from typing import Any

from api_overhead.running_replica import ADMIN_KEY, RunningReplica
from chairlift.bench.report.percentiles import summarize
from chairlift.bench.server.http_client import Client, ExchangeEndKind, Headers, NoResponse
from chairlift.core.sampling_params import SamplingParams
from chairlift.llm.async_llm import AsyncLLM
from chairlift.llm.text_service import TextService

WARMUP_SECONDS = 2.0
FINISHED = "finished"
MAX_TIMELINES = 900
"""Requests whose timeline is fetched. A server keeps the timelines of its last 1,000 requests."""

IN_PROCESS = "in process"
"""The report's name of requests that go to the engine without an API process."""

EVENT_MARK = b"data: "
PROMPT = list(b"hello")
"""Token ids, because the fake tokenizer has no id for the token that starts a text."""


class _EventCounter:
    """Counts the events of a stream and, if `times` is a list, records when they arrived."""

    def __init__(self, total: list[int], times: list[float] | None) -> None:
        self._total = total
        self._times = times
        self._tail = b""

    def head(self, status: int, headers: Headers) -> None:
        if status != 200:
            raise ValueError(f"the response to a stream has status {status}, expected 200")

    def body(self, piece: bytes, now: float) -> None:
        data = self._tail + piece
        num_events, self._tail = data.count(EVENT_MARK), data[1 - len(EVENT_MARK) :]
        self._total[0] += num_events
        if self._times is not None and num_events:
            self._times.append(now)


async def measure_streams(
    replica: RunningReplica, num_streams: int, seconds: float, *, scrapes_per_second: float = 0.0
) -> dict[str, Any]:
    """Read streams and scrape /metrics, and return the chunk rate and its CPU cost."""
    client, total, seeds = replica.client(), [0], count()
    times: list[list[float]] = [[] for _ in range(max(1, num_streams // 10))]

    async def read(index: int) -> None:
        while True:
            counter = _EventCounter(total, times[index] if index < len(times) else None)
            ended = await client.send(_request(client, next(seeds), 4000), counter, 600.0)
            if ended.how is not ExchangeEndKind.COMPLETE:
                raise NoResponse(f"a stream was cut: {ended.why}")

    async def scrape() -> None:
        while scrapes_per_second:
            await client.fetch("GET", "/metrics")
            await asyncio.sleep(1 / scrapes_per_second)

    tasks = [asyncio.create_task(read(index)) for index in range(num_streams)]
    await asyncio.sleep(WARMUP_SECONDS)
    tasks.append(asyncio.create_task(scrape()))
    total_before, cpu_before, started_at = total[0], replica.cpu_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    num_chunks, cpu_seconds = total[0] - total_before, replica.cpu_seconds() - cpu_before
    elapsed = time.monotonic() - started_at
    await _cancel(tasks)
    client.close()
    gaps = [later - earlier for each in times for earlier, later in pairwise(each) if earlier >= started_at]
    return {
        "streams": num_streams, "seconds": elapsed, "chunks_per_second": num_chunks / elapsed,
        "api_core_share": cpu_seconds / elapsed,
        "chunks_per_core_second": num_chunks / cpu_seconds if cpu_seconds else None,
        "scrapes_per_second": scrapes_per_second, "gap_seconds": {**summarize(gaps), "max": max(gaps, default=None)},
    }  # fmt: skip


async def measure_requests(
    replica: RunningReplica, rate: float, tokens: int, seconds: float, *, stream: bool
) -> dict[str, Any]:
    """Send requests at random times, and return their total time and their time outside the engine."""
    client, admin, seeds = replica.client(), replica.client(ADMIN_KEY), Random(7)

    async def send(request_id: str) -> None:
        request = _request(client, seeds.randrange(2**31), tokens, stream=stream, request_id=request_id)
        ended = await client.send(request, _EventCounter([0], None), 600.0)
        if ended.how is not ExchangeEndKind.COMPLETE:
            raise NoResponse(f"request {request_id} was cut: {ended.why}")

    request_seconds = await _send_at_random_times(send, rate, seconds)
    outside: list[float] = []
    for request_id in list(request_seconds)[-MAX_TIMELINES:]:
        status, body = await admin.fetch("GET", f"/admin/requests/{request_id}")
        if status != 200:
            raise NoResponse(f"the server has no timeline of request {request_id} (status {status})")
        finished_at = next(at for event, at, _ in json.loads(body)["events"] if event == FINISHED)
        outside.append(request_seconds[request_id] - finished_at)
    client.close()
    admin.close()
    return {"how": "streamed" if stream else "whole", **_summary([*request_seconds.values()], outside, rate, tokens)}


async def measure_in_process(service: TextService, rate: float, tokens: int, seconds: float) -> dict[str, Any]:
    """Measure the same requests without an API process: this process sends them to the engine."""
    llm, seeds = AsyncLLM.from_service(service), Random(7)
    engine_seconds: dict[str, float] = {}

    async def send(request_id: str) -> None:
        params = SamplingParams(max_tokens=tokens, seed=seeds.randrange(2**31))
        async with aclosing(llm.generate(PROMPT, params)) as events:
            async for event in events:
                if event.error is not None:
                    raise event.error
                if event.timeline is not None:
                    engine_seconds[request_id] = next(
                        moment.at for moment in event.timeline.events if moment.name == FINISHED
                    )

    request_seconds = await _send_at_random_times(send, rate, seconds)
    outside = [total - engine_seconds[request_id] for request_id, total in request_seconds.items()]
    return {"how": IN_PROCESS, **_summary([*request_seconds.values()], outside, rate, tokens)}


async def _send_at_random_times(
    send: Callable[[str], Coroutine[Any, Any, None]], rate: float, seconds: float
) -> dict[str, float]:
    """Send requests at the same random times in each run.

    Returns: request id -> seconds that the request took.
    """
    durations: dict[str, float] = {}

    async def send_timed(request_id: str) -> None:
        started_at = time.monotonic()
        await send(request_id)
        durations[request_id] = time.monotonic() - started_at

    random, due, started_at = Random(11), 0.0, time.monotonic()
    tasks: list[asyncio.Task[None]] = []
    while (due := due + random.expovariate(rate)) <= seconds:
        await asyncio.sleep(max(0.0, started_at + due - time.monotonic()))
        tasks.append(asyncio.create_task(send_timed(f"cost-{len(tasks)}")))
    await asyncio.gather(*tasks)
    return durations


def _summary(durations: list[float], outside: list[float], rate: float, tokens: int) -> dict[str, Any]:
    return {
        "requests": len(durations), "requests_per_second": rate, "tokens": tokens,
        "concurrent": rate * sum(durations) / len(durations), "request_seconds": summarize(durations),
        "outside_seconds": summarize(outside),
    }  # fmt: skip


def _request(client: Client, seed: int, tokens: int, *, stream: bool = True, request_id: str = "") -> bytes:
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": tokens, "seed": seed, "stream": stream}
    header = f"x-request-id: {request_id}\r\n" if request_id else ""
    return client.request("POST", "/v1/completions", json.dumps(body).encode(), header)


async def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait for them. Raises the error of a task that had failed before."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
