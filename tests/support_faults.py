"""A slow engine, long requests and many concurrent streams for the tests of faults."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from chairlift.engine.runner.fake_model import FakeConfig
from support_process import TIMEOUT_SECONDS
from support_server import COMPLETIONS, Server

NUM_STREAMS = 40
SLOW_ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=8192, seconds_per_step=0.015, verify=False)
LONG_REQUEST: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 250, "seed": 1}


async def read_stream(
    http: httpx.AsyncClient, body: dict[str, Any], on_first_chunk: Callable[[], None]
) -> tuple[int, str]:
    """Read a stream until it ends or breaks; returns its status and the text received."""
    text, is_first = "", True
    async with http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
        try:
            async for piece in response.aiter_text():
                text += piece
                if is_first:
                    is_first = False
                    on_first_chunk()
        except httpx.RemoteProtocolError:
            pass
        return response.status_code, text


def unlimited_client(server: Server) -> httpx.AsyncClient:
    """Return a client without a limit of connections."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, limits=limits, timeout=TIMEOUT_SECONDS)


async def run_streams_during(server: Server, action: Callable[[], None]) -> list[tuple[int, str]]:
    """Open NUM_STREAMS streams, run the action after the first chunk of each, and read them all.

    Returns the status and text of each stream.
    """
    started: list[int] = []
    async with unlimited_client(server) as http:
        tasks = [
            asyncio.create_task(read_stream(http, {**LONG_REQUEST, "seed": seed}, lambda: started.append(1)))
            for seed in range(NUM_STREAMS)
        ]
        while len(started) < NUM_STREAMS:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(action)
        return await asyncio.gather(*tasks)


def post_bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a POST of a completion request."""
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (
        COMPLETIONS.encode(),
        len(data),
        data,
    )
