"""etcd, Redis and the master of a Sentinel are killed and come back under load: no request fails, and routing goes on.

A short outage runs always; those that last longer than a lease run in `make test-all`.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support_service_outages import LEASE_SECONDS, RegisteredFleet, eventually, load, registered_fleet
from support_services_processes import EtcdServer, etcd_server
from support_services_redis import HOST, RedisServer, SentinelServer, raw_command

TIMEOUT_SECONDS = 120.0
ROUTED_SECONDS = 2.0
"""Limit within which a router uses a replica that has registered, or reads a registry that is back."""

Outages = Callable[[RegisteredFleet, EtcdServer], Awaitable[None]]


def run(folder: Path, shared_state: str, outages: Outages, lease_seconds: int = LEASE_SECONDS) -> None:
    """Cause outages under load, with two replicas that the router finds by etcd."""

    async def scenario(etcd: EtcdServer) -> None:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            registered_fleet(f"etcd://{etcd.host}/replicas", folder) as fleet,
        ):
            replicas = [fleet.start_replica(lease_seconds) for _ in range(2)]
            await fleet.start_router("--shared-state", shared_state)
            for replica in replicas:
                await replica.ready()

            async def complete() -> bool:
                return len(await fleet.routed()) == 2

            await eventually(complete)
            assert await fleet.is_shared()
            async with load(fleet):
                await outages(fleet, etcd)

    with etcd_server(folder) as etcd:
        asyncio.run(scenario(etcd))


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    redis = RedisServer(folder / "redis").start()
    try:
        yield redis
    finally:
        redis.stop()


async def replace_replica(fleet: RegisteredFleet, is_registered: Callable[[str], bool]) -> None:
    """A new replica is used within 2 s of its registration; after a kill -9 it leaves within its lease."""
    before = await fleet.listed()
    replica = await fleet.start_replica().ready()

    async def registered() -> bool:
        return await asyncio.to_thread(is_registered, replica.url)

    async def routed() -> bool:
        return replica.url in await fleet.routed()

    async def left() -> bool:
        return await fleet.listed() == before

    await eventually(registered)
    await eventually(routed, ROUTED_SECONDS)
    replica.kill()
    await eventually(left, LEASE_SECONDS + ROUTED_SECONDS)


async def lose_etcd(fleet: RegisteredFleet, etcd: EtcdServer, down_seconds: float, *, keeps_data: bool) -> None:
    """Kill etcd and start it again; the router uses both replicas all the time."""
    replicas = await fleet.routed()
    assert len(replicas) == 2
    etcd.stop()
    if not keeps_data:
        etcd.forget()
    for _ in range(max(1, int(down_seconds / 0.1))):
        assert await fleet.routed() == replicas
        await asyncio.sleep(0.1)
    await asyncio.to_thread(etcd.start)
    await eventually(lambda: fleet.source_is("up", "empty"), ROUTED_SECONDS)

    async def has_returned() -> bool:
        assert await fleet.listed() == replicas
        keys = await asyncio.to_thread(etcd.keys, "/replicas/")
        return len(keys) == 2 and await fleet.source_is("up")

    await eventually(has_returned)
    assert await fleet.routed() == replicas


async def lose_etcd_and_replace_a_replica(fleet: RegisteredFleet, etcd: EtcdServer, *, keeps_data: bool) -> None:
    await lose_etcd(fleet, etcd, 3 * LEASE_SECONDS, keeps_data=keeps_data)
    await replace_replica(fleet, lambda url: f"/replicas/{url.removeprefix('http://')}" in etcd.keys("/replicas/"))


async def lose_redis(fleet: RegisteredFleet, redis: RedisServer, down_seconds: float) -> None:
    """Kill Redis and start it again without data; the router shares its state again."""

    async def is_local() -> bool:
        return not await fleet.is_shared()

    redis.kill()
    await eventually(is_local)
    await asyncio.sleep(down_seconds)
    await asyncio.to_thread(redis.start)
    await eventually(fleet.is_shared)
    await eventually(lambda: asyncio.to_thread(has_data, redis))


def has_data(redis: RedisServer) -> bool:
    reply = raw_command(redis.port, "DBSIZE")
    return reply.startswith(":") and not reply.startswith(":0\r")


@pytest.mark.full
def test_etcd_and_redis_restart_without_data_and_no_request_fails(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:

        async def outages(fleet: RegisteredFleet, etcd: EtcdServer) -> None:
            await asyncio.gather(lose_etcd(fleet, etcd, 0.1, keeps_data=False), lose_redis(fleet, redis, 0.1))

        run(tmp_path, redis.url, outages, lease_seconds=1)


@pytest.mark.full
def test_long_outages_of_etcd_and_redis_and_no_request_fails(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:

        async def outages(fleet: RegisteredFleet, etcd: EtcdServer) -> None:
            for keeps_data in (True, False):
                await lose_etcd_and_replace_a_replica(fleet, etcd, keeps_data=keeps_data)
                await lose_redis(fleet, redis, 3.0)
            await asyncio.gather(lose_etcd(fleet, etcd, 3.0, keeps_data=False), lose_redis(fleet, redis, 3.0))

        run(tmp_path, redis.url, outages)


@pytest.mark.full
def test_etcd_and_redis_are_suspended_for_longer_than_a_lease_and_no_request_fails(tmp_path: Path) -> None:
    """The leases end together when etcd goes on; the replicas register again."""
    with redis_server(tmp_path) as redis:

        async def outages(fleet: RegisteredFleet, etcd: EtcdServer) -> None:
            assert etcd.process is not None
            replicas = await fleet.listed()

            async def has_returned() -> bool:
                keys = await asyncio.to_thread(etcd.keys, "/replicas/")
                return len(keys) == 2 and await fleet.source_is("up") and await fleet.routed() == replicas

            for send_signal in (etcd.process.send_signal, redis.send_signal):
                send_signal(signal.SIGSTOP)
            await asyncio.sleep(3 * LEASE_SECONDS)
            assert await fleet.routed() == replicas and not await fleet.is_shared()
            for send_signal in (etcd.process.send_signal, redis.send_signal):
                send_signal(signal.SIGCONT)
            await asyncio.sleep(LEASE_SECONDS)
            await eventually(has_returned)
            await eventually(fleet.is_shared)

        run(tmp_path, redis.url, outages)


async def fail_over(fleet: RegisteredFleet, master: RedisServer, promoted: RedisServer) -> None:
    """Kill the master of a Sentinel: the router goes on with the promoted one, and the old one becomes its replica."""

    async def is_local() -> bool:
        return not await fleet.is_shared()

    async def is_shared_with_promoted() -> bool:
        role = await asyncio.to_thread(raw_command, promoted.port, "ROLE")
        return "master" in role and await fleet.is_shared()

    master.kill()
    await eventually(is_local)
    await eventually(is_shared_with_promoted)
    await eventually(lambda: asyncio.to_thread(has_data, promoted))
    await asyncio.to_thread(master.start)
    await eventually(lambda: asyncio.to_thread(is_linked, master))


def is_linked(replica: RedisServer) -> bool:
    return "master_link_status:up" in raw_command(replica.port, "INFO", "replication")


@pytest.mark.full
def test_failovers_of_a_sentinel_and_its_restart_and_no_request_fails(tmp_path: Path) -> None:
    first = RedisServer(tmp_path / "first", "--repl-diskless-sync-delay", "0").start()
    second = RedisServer(
        tmp_path / "second", "--repl-diskless-sync-delay", "0", "--replicaof", HOST, f"{first.port}"
    ).start()
    sentinel = SentinelServer(tmp_path / "sentinel", first)

    async def outages(fleet: RegisteredFleet, etcd: EtcdServer) -> None:
        await fail_over(fleet, first, second)
        sentinel.kill()
        await asyncio.sleep(1.0)
        assert await fleet.is_shared()
        await asyncio.to_thread(sentinel.start)
        second.options.clear()  # it starts as a master, and the Sentinel makes it a replica of the other
        await fail_over(fleet, second, first)

    async def knows_both() -> bool:
        reply = await asyncio.to_thread(raw_command, sentinel.port, "SENTINEL", "REPLICAS", "fleet")
        return f"{second.port}" in reply and is_linked(second)

    try:
        sentinel.start()
        asyncio.run(eventually(knows_both))
        run(tmp_path, f"redis+sentinel://{HOST}:{sentinel.port}/fleet/0", outages)
    finally:
        for server in (sentinel, first, second):
            server.stop()
