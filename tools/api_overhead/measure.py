"""Measure: streams that are counted, requests that are timed, and both while somebody reads the metrics."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from itertools import count, pairwise
from random import Random
from typing import Any

from api_overhead.server_fixture import ADMIN_KEY, Place
from chairlift.bench.report.percentiles import summarize
from chairlift.bench.server.http_client import Client, ExchangeEndKind, Headers, NoResponse
from chairlift.core.sampling import SamplingParams
from chairlift.llm.async_llm import AsyncLLM
from chairlift.llm.text_service import TextService

WARM_SECONDS = 2.0
FINISHED = "finished"
REMEMBERED = 900
"""Requests whose life can be asked for; a server remembers a hundred more."""

MARK = b"data: "
PROMPT = list(b"hello")
"""As ids: the fake has none for the mark that a text would begin with."""


class _Counter:
    """Counts the events of a stream; of one in so many streams the times, too."""

    def __init__(self, total: list[int], times: list[float] | None) -> None:
        self._total = total
        self._times = times
        self._tail = b""

    def head(self, status: int, headers: Headers) -> None:
        if status != 200:
            raise ValueError(f"a stream was answered with {status}")

    def body(self, piece: bytes, now: float) -> None:
        seen = self._tail + piece
        found, self._tail = seen.count(MARK), seen[1 - len(MARK) :]
        self._total[0] += found
        if self._times is not None and found:
            self._times.append(now)


async def chunks(place: Place, streams: int, seconds: float, *, scrapes: float = 0.0) -> dict[str, Any]:
    """Read so many streams for so long, and /metrics so many times a second; tells chunks and what they cost."""
    client, total, seeds = place.client(), [0], count()
    times: list[list[float]] = [[] for _ in range(max(1, streams // 10))]

    async def read(number: int) -> None:
        while True:
            counter = _Counter(total, times[number] if number < len(times) else None)
            ended = await client.ask(_request(client, next(seeds), 4000), counter, 600.0)
            if ended.how is not ExchangeEndKind.COMPLETE:
                raise NoResponse(f"a stream was cut: {ended.why}")

    async def scrape() -> None:
        while scrapes:
            await client.fetch("GET", "/metrics")
            await asyncio.sleep(1 / scrapes)

    tasks = [asyncio.create_task(read(number)) for number in range(streams)]
    await asyncio.sleep(WARM_SECONDS)
    tasks.append(asyncio.create_task(scrape()))
    before, cpu, began = total[0], place.seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    counted, used, took = total[0] - before, place.seconds() - cpu, time.monotonic() - began
    await _stopped(tasks)
    client.close()
    gaps = [later - sooner for each in times for sooner, later in pairwise(each) if sooner >= began]
    return {
        "streams": streams, "seconds": took, "chunks_per_second": counted / took, "api_core_share": used / took,
        "chunks_per_core_second": counted / used if used else None, "scrapes_per_second": scrapes,
        "gap_seconds": {**summarize(gaps), "max": max(gaps, default=None)},
    }  # fmt: skip


async def requests(place: Place, rate: float, tokens: int, seconds: float, *, stream: bool) -> dict[str, Any]:
    """Send requests at random moments; tells what each took, and how much of that the engine did not have it."""
    client, admin, seeds = place.client(), place.client(ADMIN_KEY), Random(7)

    async def send(name: str) -> None:
        request = _request(client, seeds.randrange(2**31), tokens, stream=stream, name=name)
        ended = await client.ask(request, _Counter([0], None), 600.0)
        if ended.how is not ExchangeEndKind.COMPLETE:
            raise NoResponse(f"{name} was cut: {ended.why}")

    took = await _timed(send, rate, seconds)
    outside: list[float] = []
    for name in list(took)[-REMEMBERED:]:
        status, body = await admin.fetch("GET", f"/admin/requests/{name}")
        if status != 200:
            raise NoResponse(f"nothing is known of {name} ({status})")
        outside.append(took[name] - next(at for event, at, _ in json.loads(body)["events"] if event == FINISHED))
    client.close()
    admin.close()
    return {"how": "streamed" if stream else "whole", **_told([*took.values()], outside, rate, tokens)}


async def direct(service: TextService, rate: float, tokens: int, seconds: float) -> dict[str, Any]:
    """Do the same without a door: this process gives the requests to the engine itself."""
    llm, seeds = AsyncLLM.from_service(service), Random(7)
    inside: dict[str, float] = {}

    async def send(name: str) -> None:
        params = SamplingParams(max_tokens=tokens, seed=seeds.randrange(2**31))
        async with aclosing(llm.generate(PROMPT, params)) as events:
            async for event in events:
                if event.error is not None:
                    raise event.error
                if event.timeline is not None:
                    inside[name] = next(moment.at for moment in event.timeline.events if moment.name == FINISHED)

    took = await _timed(send, rate, seconds)
    outside = [seconds - inside[name] for name, seconds in took.items()]
    return {"how": "without a door", **_told([*took.values()], outside, rate, tokens)}


async def _timed(send: Callable[[str], Coroutine[Any, Any, None]], rate: float, seconds: float) -> dict[str, float]:
    """Begin at the same random moments each time; returns name -> seconds of each."""
    took: dict[str, float] = {}

    async def once(name: str) -> None:
        began = time.monotonic()
        await send(name)
        took[name] = time.monotonic() - began

    random, due, began = Random(11), 0.0, time.monotonic()
    tasks: list[asyncio.Task[None]] = []
    while (due := due + random.expovariate(rate)) <= seconds:
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        tasks.append(asyncio.create_task(once(f"cost-{len(tasks)}")))
    await asyncio.gather(*tasks)
    return took


def _told(took: list[float], outside: list[float], rate: float, tokens: int) -> dict[str, Any]:
    return {
        "requests": len(took), "requests_per_second": rate, "tokens": tokens,
        "concurrent": rate * sum(took) / len(took), "request_seconds": summarize(took),
        "outside_seconds": summarize(outside),
    }  # fmt: skip


def _request(client: Client, seed: int, tokens: int, *, stream: bool = True, name: str = "") -> bytes:
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": tokens, "seed": seed, "stream": stream}
    named = f"x-request-id: {name}\r\n" if name else ""
    return client.request("POST", "/v1/completions", json.dumps(body).encode(), named)


async def _stopped(tasks: "list[asyncio.Task[Any]]") -> None:
    """Cancel tasks. Raises what one of them had failed with."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
