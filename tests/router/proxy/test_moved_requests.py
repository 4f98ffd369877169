"""Requests through a served router that wait at a full replica while another one becomes ready."""

import asyncio
from typing import Any

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.router import Router
from support_request_proxy import DONE, know_weights, text_event, token_stream
from support_router import Connection, ReceivedRequest, Script
from support_router_app import routed
from support_server import run

NUM_REQUESTS = 6
STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], "seed": 1}


@pytest.fixture(autouse=True)
def moves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.router.proxy.request_mover.SETTLE_SECONDS", 0.0)


def waiting_for(start: asyncio.Event, then: Script) -> Script:
    """Return a script that responds as another one does, but not before the start."""

    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await start.wait()
        await then(connection, request)

    return script


async def foreign_stream(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    await connection.piece(text_event(1))
    await connection.piece(DONE)
    await connection.end()


def report(router: Router, url: str, **fields: Any) -> None:
    load = ReplicaLoad(at_seconds=router.clock.now(), state=ReplicaState.READY, max_running_requests=64, **fields)
    router.replicas.record_load(router.replicas._replicas[url], load, router.clock.now())


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.share(2)
@pytest.mark.parametrize("is_chairlift", [True, False])
@pytest.mark.parametrize("policy", ["round_robin", "prefix", "session"])
def test_waiting_streams_move_and_every_client_has_one_response(policy: str, is_chairlift: bool) -> None:
    async def scenario() -> None:
        start = asyncio.Event()
        script = token_stream(10) if is_chairlift else foreign_stream
        async with routed(waiting_for(start, script), script, policy=policy) as fleet:
            router, (one, two) = fleet.running.router, fleet.replicas
            if is_chairlift:
                know_weights(fleet.running)
            router.replicas.drain(two.url, router.clock.now())
            posts = [asyncio.create_task(fleet.post(STREAM)) for _ in range(NUM_REQUESTS)]
            await until(lambda: len(one.requests) == NUM_REQUESTS)
            report(router, one.url, waiting_requests=NUM_REQUESTS, expected_wait_seconds=9.0)
            report(router, two.url)
            router.replicas.undrain(two.url, router.clock.now())
            num_moved = 0 if policy == "session" else NUM_REQUESTS // 2
            await until(lambda: sum(post.done() for post in posts) == num_moved)
            start.set()
            responses = [await each for each in posts]
            assert len(two.requests) == num_moved and len(one.requests) == NUM_REQUESTS
            texts = {response.content for response in responses}
            assert all(text.endswith(DONE) and text.count(DONE) == 1 for text in texts)
            assert f"chairlift_router_moved_requests_total {num_moved}.0" in router.telemetry.metrics.render().decode()
            assert all(each.num_ejections == 0 for each in router.replicas.statuses(0.0))
            assert router.budget("m").active_retries == router.budget("m").num_rejected == 0

    run(scenario())
