"""Redis behind a Sentinel: after kill -9 of the master the routers go on with the promoted replica."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.core.errors import RateLimited
from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.redis_connection import RedisTiming
from chairlift.router.shared_state.redis_url import RedisTarget
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter
from chairlift.web.tenant_limits import TenantLimits
from support_services_redis import HOST, RedisServer, SentinelServer, free_port, raw_command

LIMITS = TenantLimits(tenant_tokens_per_minute=1_000, tenant_max_open_requests=5)
TIMING = RedisTiming(call_seconds=0.5, retry_seconds=0.1, renew_seconds=0.1)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """A master, its replica, and a Sentinel that knows both."""
    master = RedisServer(tmp_path / "master", "--repl-diskless-sync-delay", "0").start()
    replica = RedisServer(tmp_path / "replica", "--replicaof", HOST, f"{master.port}").start()
    sentinel = SentinelServer(tmp_path / "sentinel", master)
    servers = [master, replica, sentinel]
    try:
        wait_for(lambda: "master_link_status:up" in raw_command(replica.port, "INFO", "replication"))
        sentinel.start()
        wait_for(lambda: f"{replica.port}" in raw_command(sentinel.port, "SENTINEL", "REPLICAS", "fleet"))
        yield servers
    finally:
        for server in servers:
            server.stop()


def wait_for(condition: "object", seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def test_routers_go_on_with_shared_limits_after_a_failover(servers: list[RedisServer]) -> None:
    """No call fails in between, and the first Sentinel of the URL is one that does not run."""
    master, replica, sentinel = servers
    url = f"redis+sentinel://{HOST}:{free_port()},{HOST}:{sentinel.port}/fleet/1"

    async def run() -> None:
        config = RedisStateConfig(target=RedisTarget.parse(url), timing=TIMING)
        states = [RedisSharedState(config), RedisSharedState(config)]
        limiters = [SharedTenantLimiter(LIMITS, state.tenant_usage) for state in states]
        for state in states:
            await state.start()
            assert state.status().is_connected, state.status()
            assert state.status().address.endswith("/fleet/1")
        reservations = [await limiters[number % 2].begin("t", 100) for number in range(4)]
        await states[0].sessions.assign("user", "r1")
        states[0].ejections.eject("r1", 60, "slow")

        master.kill()
        deadline, longest, num_rejected = time.monotonic() + 30, 0.0, 0
        while not (
            all(state.status().is_connected for state in states)
            and "role:master" in raw_command(replica.port, "INFO", "replication")
        ):
            assert time.monotonic() < deadline, [state.status() for state in states]
            started_at = time.monotonic()
            for limiter in limiters:
                try:
                    (await limiter.begin("load")).end(0)
                except RateLimited:
                    num_rejected += 1
            longest = max(longest, time.monotonic() - started_at)
            await asyncio.sleep(0.005)
        assert longest < 2
        assert num_rejected == 0
        assert states[0].status().num_outages >= 1

        await asyncio.sleep(0.2)
        reservations.append(await limiters[0].begin("t"))
        for limiter in limiters:
            with pytest.raises(RateLimited, match="5 of your requests are open"):
                await limiter.begin("t")
        reservations.pop().end(0)
        with pytest.raises(RateLimited, match="your tokens of this minute"):
            await limiters[1].begin("t", 900)
        assert await states[0].sessions.get("user") == "r1"  # restores it if the replica did not have it yet
        assert await states[1].sessions.get("user") == "r1"
        assert "r1" in states[1].ejections.of_other_routers(time.monotonic())
        assert "open:" in raw_command(
            replica.port, "EVAL", "redis.call('SELECT', 1) return redis.call('HKEYS', 'chairlift:tenant:t')", "0"
        )
        for state in states:
            await state.close()

    asyncio.run(run())


def test_a_name_that_the_sentinel_does_not_know_leaves_the_local_limits(servers: list[RedisServer]) -> None:
    async def run() -> None:
        target = RedisTarget.parse(f"redis+sentinel://{HOST}:{servers[2].port}/other")
        state = RedisSharedState(RedisStateConfig(target=target, timing=TIMING))
        await state.start()
        assert not state.status().is_connected
        assert state.status().error.endswith(f"for 'other': {HOST}:{servers[2].port} does not know it")
        await SharedTenantLimiter(LIMITS, state.tenant_usage).begin("t")
        await state.close()

    asyncio.run(run())
