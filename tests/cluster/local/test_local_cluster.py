"""LocalCluster: the Cluster protocol over real processes, readiness, the log of all replicas, and real servers."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.cluster.base import Cluster, ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.local import local_cluster, state_folder
from chairlift.cluster.local.local_cluster import LocalCluster
from chairlift.cluster.local.readiness_probe import is_serving
from chairlift.core.cluster_errors import ClusterFailed
from support_local_cluster import FAIL, FAKE_SERVER, SLEEP, SPEC, WallTime, config_of, fake_server_environ
from support_process import TIMEOUT_SECONDS, has_ended

SERVE_READY = (
    sys.executable, "-I", "-S", "-c",
    "import socket, sys\n"
    "with socket.create_server(('127.0.0.1', int(sys.argv[4]))) as server:\n"
    "    while True:\n"
    "        with server.accept()[0] as client: client.recv(999), client.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n')\n",
)  # fmt: skip
PLAIN = ReplicaSpec()


def run(scenario: Callable[[LocalCluster], Awaitable[None]], folder: Path, command: tuple[str, ...] = SLEEP) -> None:
    async def with_cluster() -> None:
        async with LocalCluster(config_of(folder, command), WallTime()) as cluster:
            await scenario(cluster)

    asyncio.run(with_cluster())


async def until(cluster: LocalCluster, condition: Callable[[list[ClusterReplica]], bool]) -> list[ClusterReplica]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition(replicas := list(await cluster.list())):
            await asyncio.sleep(0.01)
    return replicas


def states(replicas: list[ClusterReplica]) -> list[str]:
    return sorted(each.state for each in replicas)


def test_replicas_are_listed_from_their_start_to_their_end(folder: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        assert list(await cluster.list()) == []
        protocol: Cluster = cluster
        await protocol.start(replace(SPEC, replica_type="large"), 2)
        replicas = await until(cluster, lambda each: states(each) == ["running", "running"])
        assert {(each.version, each.replica_type) for each in replicas} == {
            (replace(SPEC, replica_type="large").version, "large")
        }
        assert all(each.url.startswith("http://127.0.0.1:") and each.node for each in replicas)
        await protocol.stop([replicas[0].replica_id])
        assert replicas[0].replica_id not in {
            each.replica_id for each in await protocol.list() if each.state is not PlacementState.STOPPING
        }
        await until(cluster, lambda each: [one.replica_id for one in each] == [replicas[1].replica_id])
        await protocol.scale(SPEC, 0)
        await until(cluster, lambda each: each == [])

    run(scenario, folder)


def test_replicas_run_on_after_close_and_the_next_controller_has_them(folder: Path) -> None:
    names = []

    async def scenario(cluster: LocalCluster) -> None:
        await cluster.scale(SPEC, 1)
        names.append([each.replica_id for each in await until(cluster, lambda each: states(each) == ["running"])])

    run(scenario, folder)
    run(scenario, folder)
    assert names[0] == names[1]


def test_an_adopted_replica_has_the_address_that_it_was_started_with(folder: Path) -> None:
    urls = []

    async def scenario(host: str) -> None:
        async with LocalCluster(config_of(folder, host=host)) as cluster:
            await cluster.scale(SPEC, 1)
            urls.append([each.url for each in await cluster.list()])

    asyncio.run(scenario("127.0.0.1"))
    asyncio.run(scenario("::1"))
    assert urls[0] == urls[1] and urls[0][0].startswith("http://127.0.0.1:")


def test_a_closed_cluster_says_so(folder: Path) -> None:
    async def scenario() -> None:
        cluster = LocalCluster(config_of(folder))
        await cluster.close()
        await cluster.close()
        with pytest.raises(ClusterFailed, match="is closed"):
            await cluster.list()
        assert [line async for line in cluster.log_lines()] == []

    asyncio.run(scenario())


def test_a_second_controller_and_a_folder_that_cannot_be_used_are_errors_of_the_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.0)

    async def scenario(cluster: LocalCluster) -> None:
        await cluster.list()
        async with LocalCluster(config_of(folder)) as second:
            with pytest.raises(ClusterFailed, match="another controller"):
                await second.list()
        (folder / "replicas").rename(folder / "lost")
        (folder / "replicas").touch()
        with pytest.raises(ClusterFailed, match="cannot be used"):
            await cluster.scale(SPEC, 1)
        (folder / "replicas").unlink()
        await cluster.scale(SPEC, 1)

    run(scenario, folder)


def test_work_is_done_in_one_other_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    spawn = local_cluster.LocalReplicas.scale

    def scale(*arguments: object) -> None:
        threads.add(threading.current_thread())
        spawn(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local_cluster.LocalReplicas, "scale", scale)

    async def scenario(cluster: LocalCluster) -> None:
        await asyncio.gather(*(cluster.scale(SPEC, 1) for _ in range(5)))
        assert len(await cluster.list()) == 1

    run(scenario, folder)
    assert len(threads) == 1 and threading.main_thread() not in threads


def test_a_failed_replica_says_why_and_is_listed_for_a_minute(folder: Path) -> None:
    wall = WallTime()

    async def scenario() -> None:
        async with LocalCluster(config_of(folder, FAIL, max_failures=2), wall) as cluster:
            await cluster.scale(SPEC, 1)
            (first,) = await until(cluster, lambda each: states(each) == ["failed"])
            assert "exit code 3; it is restarted in 1.0 s" in first.reason
            assert first.reason.endswith("loading | the model is broken")
            wall.now += 1
            await cluster.scale(SPEC, 1)
            both = await until(cluster, lambda each: states(each) == ["failed", "failed"])
            assert "another replica was started" in both[0].reason and "crash loop" in both[1].reason
            wall.now += 60
            await cluster.scale(SPEC, 1)
            assert [each.replica_id for each in await cluster.list()] == [both[1].replica_id]
            await cluster.release_failed()
            await cluster.scale(SPEC, 1)
            assert len(await until(cluster, lambda each: len(each) == 1)) == 1

    asyncio.run(scenario())


def test_a_replica_that_answers_its_readiness_check_has_served(folder: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        await cluster.start(PLAIN, 2)

        def have_served(_: list[ClusterReplica]) -> bool:
            return all('"has_served": true' in path.read_text() for path in folder.glob("replicas/*/record.json"))

        await until(cluster, have_served)

    run(scenario, folder, SERVE_READY)


def test_the_lines_of_all_replicas_are_read_with_their_names(folder: Path) -> None:
    command = ("sh", "-c", 'echo "port $4"; printf "no newline"', "replica")

    async def scenario(cluster: LocalCluster) -> None:
        lines = []
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for line in cluster.log_lines(poll_seconds=0.005):
                lines.append(line)
                if len(lines) == 4:
                    break
        replicas = await cluster.list()
        expected = [(each.replica_id, f"port {each.url.rpartition(':')[2]}") for each in replicas]
        expected += [(each.replica_id, "no newline") for each in replicas]
        assert sorted(lines) == sorted(expected)

    async def start_and_read(cluster: LocalCluster) -> None:
        await cluster.list()
        reading = asyncio.create_task(scenario(cluster))  # it follows from its first step on
        await asyncio.sleep(0)
        await cluster.start(PLAIN, 2)

        async def refresh() -> None:
            while True:
                await cluster.list()
                await asyncio.sleep(0.005)

        refreshing = asyncio.create_task(refresh())
        try:
            await reading
        finally:
            refreshing.cancel()

    run(start_and_read, folder, command)


@pytest.mark.full
def test_real_servers_serve_drain_and_end_with_their_engines(folder: Path, children_import_tests: None) -> None:
    spec = ReplicaSpec(environ=fake_server_environ())

    def children(pid: int) -> list[int]:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(each) for thread in threads for each in (thread / "children").read_text().split()]

    async def scenario(cluster: LocalCluster) -> None:
        await cluster.scale(spec, 1)
        (replica,) = await until(cluster, lambda each: states(each) == ["running"])
        port = int(replica.url.rpartition(":")[2])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await is_serving("127.0.0.1", port, "/readyz"):
                await asyncio.sleep(0.02)
        path = folder / "replicas" / replica.replica_id
        pid = int((path / "pid").read_text())
        (engine,) = children(pid)
        names = [os.readlink(each) for each in Path(f"/proc/{engine}/fd").iterdir()]
        assert str(path / "lock") not in names and str(path / "log") in names  # the lock says whether the server runs
        await cluster.stop([replica.replica_id])
        await until(cluster, lambda each: each == [])
        assert has_ended(pid) and has_ended(engine)
        assert '"exit_code": 0' in (path / "record.json").read_text()

    run(scenario, folder, FAKE_SERVER)


def test_a_killed_replica_says_why_it_was_killed(folder: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        await cluster.scale(SPEC, 1)
        (replica,) = await until(cluster, lambda each: states(each) == ["running"])
        os.kill(int((folder / "replicas" / replica.replica_id / "pid").read_text()), signal.SIGKILL)
        (failed,) = await until(cluster, lambda each: states(each) == ["failed"])
        assert failed.replica_id == replica.replica_id and "was killed, probably for lack of memory" in failed.reason

    run(scenario, folder)
