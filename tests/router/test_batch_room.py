"""RoutedBatchRoom, and batches through a router: it keeps them itself and sends their requests to its replicas."""

import json

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.router.batch_room import MAX_UNSTARTED, RoutedBatchRoom
from chairlift.router.config import RouterConfig
from chairlift.router.router import Router
from support_batch_api import BODIES, BatchClient, batch_line, batch_lines
from support_router_app import replica_and_router
from support_server import run


@pytest.mark.parametrize(
    ("num_waiting", "num_unstarted", "num_unadmitted", "expected"),
    [
        (0, 0, 0, True),
        (1, 0, 0, False),
        (1, 1, 0, True),
        (3, 3, 0, True),
        (4, 3, 0, False),
        (1, 1, 1, False),
        (9, MAX_UNSTARTED, 0, False),
    ],
)
def test_where_there_is_room(num_waiting: int, num_unstarted: int, num_unadmitted: int, expected: bool) -> None:
    async def scenario() -> None:
        router = Router(RouterConfig())
        permits = [router.admission.admit(1) for _ in range(num_waiting)]
        room = RoutedBatchRoom(router)
        assert len(permits) == num_waiting and room.has_room(num_unstarted, num_unadmitted) is expected
        assert not room.is_ready()
        router.lifecycle.mark_started(lambda: ReplicaState.READY)
        assert room.is_ready()
        await router.close()

    run(scenario())


def test_a_router_runs_batches_over_its_replicas() -> None:
    async def scenario() -> None:
        async with replica_and_router() as (direct, through):
            client = BatchClient(through)
            batch = await client.wait(await client.create(batch_lines(40) + batch_line("bad", prompt="")))
            assert batch["status"] == "completed"
            assert batch["request_counts"] == {"total": 41, "completed": 40, "failed": 1}
            outputs = await client.entries(batch["output_file_id"])
            [bad] = (await client.entries(batch["error_file_id"])).values()
            assert bad["response"]["status_code"] == 400
            texts = {each["response"]["body"]["choices"][0]["text"] for each in outputs.values()}
            body = {"model": "fake", "prompt": "lift", "max_tokens": 4, "seed": 3}
            assert texts == {(await direct.post("/v1/completions", json=body)).json()["choices"][0]["text"]}
            assert (await direct.get("/v1/files")).json()["data"] == [], "the files are the router's alone"

    run(scenario())


def test_every_endpoint_of_a_batch_is_routed() -> None:
    async def scenario() -> None:
        async with replica_and_router() as (_, through):
            client = BatchClient(through)
            for endpoint, body in BODIES.items():
                line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "fake", **body}}
                batch = await client.wait(await client.create(json.dumps(line).encode(), endpoint))
                assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}, endpoint

    run(scenario())
