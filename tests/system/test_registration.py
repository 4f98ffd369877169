"""A replica's process registers itself in a real etcd, and leaves it first thing in a drain, or with its lease."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from chairlift.router.discovery.discovery import Discovery
from chairlift.router.discovery.etcd import EtcdSource
from support_process import wait_until
from support_server import ADMIN_KEY, CHAT, HELLO, Server, fake_server, starting_server
from support_services_processes import EtcdServer, etcd_server, free_port


def registration(etcd: EtcdServer, **options: object) -> dict[str, object]:
    return {"register": f"etcd://{etcd.host}/replicas?ttl=2", **options}


class FollowedReplicas:
    """The replicas that a router would see now."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.changed_at = 0.0

    def take(self, endpoints: tuple[object, ...]) -> None:
        self.urls, self.changed_at = [each.url for each in endpoints], time.monotonic()  # type: ignore[attr-defined]


@contextmanager
def followed(etcd: EtcdServer) -> Iterator[FollowedReplicas]:
    """Follow the replicas in a thread, as a router does."""
    replicas = FollowedReplicas()
    sources = [EtcdSource(f"etcd://{etcd.host}/replicas")]
    loop = asyncio.new_event_loop()

    async def follow() -> None:
        await Discovery(sources, replicas.take, rng=random.Random(1), empty_grace_seconds=0).run()

    task = loop.create_task(follow())

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(asyncio.wait([task]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield replicas
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        loop.close()


def kill(server: Server) -> float:
    """Kill a replica's process; return when."""
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(10)
    return time.monotonic()


def test_a_ready_replica_is_seen_within_2_s_and_a_killed_one_leaves_within_its_lease(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, followed(etcd) as replicas:
        with (
            fake_server(registration=registration(etcd, register_zone="z")) as kept,
            fake_server(registration=registration(etcd)) as killed,
        ):
            both = sorted([kept.url, killed.url])
            wait_until(lambda: replicas.urls == both, 2)
            value = json.loads(etcd.keys("/replicas/")[f"/replicas/127.0.0.1:{kept.port}"])
            assert (value["url"], value["models"], value["zone"]) == (kept.url, ["fake"], "z")
            killed_at = kill(killed)
            wait_until(lambda: replicas.urls == [kept.url], 2 + 1.5)
            assert replicas.changed_at - killed_at < 2 + 1
            time.sleep(max(0.0, killed_at + 2.5 - time.monotonic()))
            assert replicas.urls == [kept.url]  # its lease was renewed
            assert kept.stop() == 0
        wait_until(lambda: replicas.urls == [], 1)


def test_a_drain_leaves_the_registry_first_and_still_serves_for_a_moment(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, fake_server(registration=registration(etcd)) as server:
        wait_until(lambda: bool(etcd.keys("/replicas/")))
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not etcd.keys("/replicas/"), 1)
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200  # of a router that has not noticed yet
        assert server.wait_for_exit() == 0


@pytest.mark.full
def test_an_operators_drain_leaves_the_registry_too(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, fake_server(admin=True, registration=registration(etcd)) as server:
        wait_until(lambda: bool(etcd.keys("/replicas/")))
        response = httpx.post(server.url + "/admin/drain", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        assert response.status_code == 202
        wait_until(lambda: not etcd.keys("/replicas/"), 1)
        assert server.wait_for_exit() == 0


def test_a_registry_that_is_down_neither_keeps_the_replica_from_serving_nor_from_its_end() -> None:
    options = {"register": f"etcd://127.0.0.1:{free_port()}/replicas"}
    with fake_server(registration=options) as server:
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200
        wait_until(lambda: "cannot register at etcd" in server.log)
        started_at = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started_at < 8


def test_an_address_that_routers_cannot_reach_ends_the_start_before_it_listens(tmp_path: Path) -> None:
    options = {"register": "etcd://127.0.0.1/replicas", "advertise_url": "nowhere/at/all"}
    with starting_server(registration=options) as server:
        assert server.wait_for_exit() != 0
        assert "advertise_url: 'nowhere/at/all'" in server.log and "listening on" not in server.log
