"""Replicas on a real Ray of three nodes with one CPU each: placement, scaling, adoption, deaths, and Ray's client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.ray.cluster import RayCluster
from chairlift.cluster.ray.config import RayConfig
from chairlift.cluster.ray.driver_process import DriverProcess
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import TIMEOUT_SECONDS, child_environment, has_ended, wait_until
from support_ray import (
    FAKE_REPLICA,
    RayNodes,
    config_of,
    engine_spec,
    is_failed,
    ray_fleet,
    ray_nodes,
    require_ray,
    serving,
    wait_for_replicas,
)
from support_server import CHAT, HELLO, events, router_server, run

pytestmark = [pytest.mark.usefixtures("children_import_tests"), pytest.mark.timeout(480)]

SPEC = ReplicaSpec(model="m", num_cpus=1)
NUM_STREAMS = 32
RUN_SECONDS = 6 * TIMEOUT_SECONDS
"""Timeout of a test, whose waits have their own: several replicas start and stop, one after another."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(3) as started:
        yield started


def pid_of(replica: ClusterReplica) -> int:
    return int(httpx.get(replica.url).json()["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def scaled(cluster: RayCluster, target: int, spec: ReplicaSpec = SPEC) -> list[ClusterReplica]:
    """Scale as a controller does, again and again, until as many replicas serve and none stops."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            await cluster.scale(spec, target)
            replicas = [each for each in await cluster.list() if not is_failed(each)]
            if len(serving(replicas)) == target == len(replicas):
                return replicas
            await asyncio.sleep(0.1)


def node_id(replica: ClusterReplica) -> str:
    """Return the start of the id of a replica's node."""
    return replica.node.partition("/")[2]


def nodes_of(replicas: Sequence[ClusterReplica]) -> set[str]:
    return {each.node for each in replicas}


@pytest.mark.full
def test_replicas_are_spread_and_those_without_a_place_wait(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "spread") as cluster:
            replicas = await scaled(cluster, 3)
            assert len(nodes_of(replicas)) == 3
            pids = [pid_of(each) for each in replicas]
            await cluster.scale(SPEC, 4)
            await cluster.scale(SPEC, 4)
            *_, waiting = await cluster.list()
            assert (waiting.state, waiting.node) == (PlacementState.PENDING, "")
            assert "needs 1 CPU: of 3 nodes, 3 have as much, in use now (3 by replicas" in waiting.reason
            first = replicas[0].replica_id
            await cluster.scale(SPEC, 1, remove=[first])  # which takes the request back, and drains two
            states = {each.replica_id: each.state for each in await cluster.list()}
            assert waiting.replica_id not in states
            assert states.get(first, PlacementState.STOPPING) is PlacementState.STOPPING
            (remaining,) = await scaled(cluster, 1)
            assert remaining.replica_id == replicas[1].replica_id
            assert [has_ended(pid) for pid in pids] == [True, False, True]

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_a_killed_controller_leaves_its_replicas_to_the_next_one(nodes: RayNodes) -> None:
    program = f"""
import asyncio, os, signal
from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.ray.cluster import RayCluster
from chairlift.cluster.ray.config import RayConfig

async def main():
    config = RayConfig(fleet="adopt", address={nodes.address!r}, host="127.0.0.1", command={FAKE_REPLICA!r})
    cluster = RayCluster(config)
    await cluster.scale(ReplicaSpec(model="m", num_cpus=1), 4)
    print(cluster._driver._process.pid, *[each.replica_id for each in await cluster.list()], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    driver_pid, *ids = done.stdout.split()
    wait_until(lambda: has_ended(int(driver_pid)))

    async def check() -> None:
        async with ray_fleet(nodes, "adopt") as cluster:
            await cluster.scale(SPEC, 4)
            replicas = await wait_for_replicas(cluster, lambda each: len(serving(each)) == 3)
            assert [each.replica_id for each in replicas] == ids
            assert replicas[3].state is PlacementState.PENDING
            await cluster.stop(ids[:1])  # the one that waited gets its place
            await wait_for_replicas(cluster, lambda each: [one.replica_id for one in serving(each)] == ids[1:])

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_two_controllers_at_once_start_as_many_as_one(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "pair") as first, ray_fleet(nodes, "pair") as second:
            await asyncio.gather(first.list(), second.list())
            await asyncio.gather(first.scale(SPEC, 2), second.scale(SPEC, 2))
            assert len(await scaled(first, 2)) == 2
            assert {each.replica_id for each in await second.list()} == {each.replica_id for each in await first.list()}

    run(check(), RUN_SECONDS)


def test_a_replica_ends_with_its_actor_and_is_replaced(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "actor") as cluster:
            (replica,) = await scaled(cluster, 1)
            pid = pid_of(replica)
            os.kill(parent_of(pid), signal.SIGKILL)
            (failed,) = await wait_for_replicas(cluster, lambda each: is_failed(each[0]))
            assert "its actor died: " in failed.reason
            wait_until(lambda: has_ended(pid))
            (second,) = await scaled(cluster, 1)
            assert second.replica_id != replica.replica_id

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_a_replica_that_cannot_start_has_failed_and_says_why(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "exit") as cluster:
            await cluster.start(ReplicaSpec(num_cpus=1, environ={"FAKE_EXIT": "3"}))
            (failed,) = await wait_for_replicas(cluster, lambda each: is_failed(each[0]))
            assert failed.reason == "its process ended with exit code 3: model folder not found: /nowhere"
            await cluster.scale(SPEC, 0)  # frees its CPU
            assert [each.state for each in await cluster.list()] == [PlacementState.FAILED]

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_an_actor_whose_environment_cannot_be_made_has_failed_and_says_why(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "environment", runtime_env={"conda": "nowhere"}) as cluster:
            await cluster.start(SPEC)
            (failed,) = await wait_for_replicas(cluster, lambda each: is_failed(each[0]))
            assert "its actor died: " in failed.reason
            assert "conda" in failed.reason

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_a_replica_that_does_not_stop_is_killed_though_no_controller_is_there(nodes: RayNodes) -> None:
    async def check() -> None:
        async with ray_fleet(nodes, "deaf", stop_timeout_seconds=0.5) as cluster:
            (replica,) = await scaled(cluster, 1, ReplicaSpec(num_cpus=1, environ={"FAKE_DEAF": "1"}))
            pid = pid_of(replica)
            await cluster.stop([replica.replica_id])
            await cluster.close()
            wait_until(lambda: has_ended(pid))
            await wait_for_replicas(cluster, lambda each: each == [])

    run(check(), RUN_SECONDS)


@pytest.mark.full  # the client's server takes up to half a minute beside other tests
def test_a_controller_outside_uses_the_client_of_ray(nodes: RayNodes) -> None:
    async def check() -> None:
        outside = RayCluster(replace(config_of(nodes, "outside"), address=f"ray://127.0.0.1:{nodes.client_port}"))
        try:
            replicas = await scaled(outside, 3)
            await outside.stop([replicas[0].replica_id])
            await outside.scale(SPEC, 2)
        finally:
            await outside.close()
        async with ray_fleet(nodes, "outside") as inside:
            ids = [each.replica_id for each in replicas[1:]]
            await wait_for_replicas(inside, lambda each: [one.replica_id for one in each] == ids)

    run(check(), RUN_SECONDS)


def body_of(number: int) -> dict[str, Any]:
    return {**HELLO, "messages": [{"role": "user", "content": f"stream {number}"}], "seed": number, "max_tokens": 200}


async def read_stream(http: httpx.AsyncClient, number: int, started: set[int]) -> str:
    """Return the text of a stream, which must end as planned."""
    body, lines = {**body_of(number), "stream": True}, []
    async with http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if '"content":' in line:
                started.add(number)
            lines.append(line)
    *chunks, end = events("\n".join(lines) + "\n")
    assert end == "[DONE]", end
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.full
def test_streams_of_a_killed_node_go_on_and_another_node_replaces_it(nodes: RayNodes, tmp_path: Path) -> None:
    engine = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=1024, seconds_per_step=0.01)
    file = tmp_path / "replicas.json"

    def write(replicas: Sequence[ClusterReplica]) -> None:
        file.with_suffix(".new").write_text(json.dumps({"replicas": [each.url for each in replicas]}))
        file.with_suffix(".new").replace(file)

    async def check() -> None:
        spec = engine_spec(engine)
        async with ray_fleet(nodes, "node") as cluster:
            replicas = await scaled(cluster, 2, spec)
            killed, other = replicas if nodes.head_id.startswith(node_id(replicas[1])) else replicas[::-1]
            write(replicas)
            with router_server("--discovery", f"file:{file}") as router:
                async with httpx.AsyncClient(base_url=router.url, timeout=TIMEOUT_SECONDS) as http:
                    await until_ready(http, replicas)
                    started: set[int] = set()
                    streams = [asyncio.create_task(read_stream(http, n, started)) for n in range(NUM_STREAMS)]
                    while len(started) < NUM_STREAMS:
                        await asyncio.sleep(0.01)
                    nodes.kill(node_id(killed))
                    assert not any(task.done() for task in streams)
                    (failed,) = filter(
                        is_failed, await wait_for_replicas(cluster, lambda each: any(map(is_failed, each)))
                    )
                    assert failed.replica_id == killed.replica_id
                    assert "died, says Ray" in failed.reason or "its actor died: " in failed.reason
                    second = await scaled(cluster, 2, spec)
                    write(second)
                    texts = await asyncio.gather(*streams)
                    answers = await asyncio.gather(*(http.post(CHAT, json=body_of(n)) for n in range(NUM_STREAMS)))
                    assert texts == [each.json()["choices"][0]["message"]["content"] for each in answers]
                    assert router.metric("router_attempts_total") > 2 * NUM_STREAMS  # those of the node had two
            assert len(nodes_of(second)) == 2
            assert killed.node not in nodes_of(second)
            assert other.replica_id in {each.replica_id for each in second}

    run(check(), RUN_SECONDS)


async def until_ready(http: httpx.AsyncClient, replicas: Sequence[ClusterReplica]) -> None:
    """Wait until the replicas serve and the router knows that all of them do."""
    for each in replicas:
        while (await http.get(f"{each.url}/readyz")).status_code != 200:
            await asyncio.sleep(0.05)
    while (await http.get("/load")).json()["replicas"]["healthy"] < len(replicas):
        await asyncio.sleep(0.05)


@pytest.mark.full
def test_a_ray_that_is_not_there_is_named() -> None:
    require_ray()

    async def check() -> None:
        cluster = RayCluster(RayConfig(address="127.0.0.1:1", connect_timeout_seconds=1.0))
        with pytest.raises(ClusterFailed, match=r"Ray at 127\.0\.0\.1:1 cannot be reached"):
            await cluster.list()
        await cluster.close()

    run(check(), RUN_SECONDS)


@pytest.mark.full
def test_a_second_controller_of_a_fleet_is_refused_until_the_first_one_has_crashed(nodes: RayNodes) -> None:
    async def main() -> None:
        async with ray_fleet(nodes, "owned") as second:
            first = RayCluster(config_of(nodes, "owned"))
            await first.list()
            with pytest.raises(ClusterFailed, match=r"another controller, process \d+ of .*--fleet-name"):
                await second.list()
            async with ray_fleet(nodes, "other") as other:
                assert await other.list() == []
            driver = first._driver
            assert isinstance(driver, DriverProcess) and driver._process is not None
            driver._process.kill()  # as a crash of the controller
            assert await second.list() == []

    run(main())
