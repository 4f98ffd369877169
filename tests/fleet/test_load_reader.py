"""LoadReader: reports of all replicas at once; one that fails does not matter to the others."""

import asyncio
from typing import Any

import aiohttp
import pytest

from chairlift.fleet.load_reader import LoadReader
from support_router import Connection, ReceivedRequest, scripted
from support_server import run

NO_SERVER = "http://127.0.0.1:9"


async def ready(connection: Connection, request: ReceivedRequest) -> None:
    assert request.target == "/load" and request.headers["authorization"] == "Bearer k"
    await connection.respond({"state": "ready", "running_requests": 3})


async def silent(connection: Connection, request: ReceivedRequest) -> None:
    await asyncio.sleep(0.3)


@pytest.mark.parametrize(("body", "status"), [
    ({"state": "ready"}, 500), ([], 200), (b"{", 200), ({"running_requests": -1}, 200), (b"[" * 50_000, 200),
])  # fmt: skip
def test_an_answer_that_is_no_report_is_left_out(body: Any, status: int) -> None:
    async def broken(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond(body, status)

    async def scenario() -> None:
        async with scripted(ready) as good, scripted(broken) as bad, aiohttp.ClientSession() as session:
            reader = LoadReader(session, lambda: {"authorization": "Bearer k"})
            loads = await reader.read([bad.url, good.url, NO_SERVER], 5.0)
            assert set(loads) == {good.url}
            assert (loads[good.url].running_requests, loads[good.url].at_seconds) == (3, 5.0)

    run(scenario())


def test_a_replica_that_does_not_answer_in_time_has_no_report() -> None:
    async def scenario() -> None:
        async with scripted(silent) as replica, aiohttp.ClientSession() as session:
            assert await LoadReader(session, dict, timeout_seconds=0.05).read([replica.url], 0.0) == {}

    run(scenario())
