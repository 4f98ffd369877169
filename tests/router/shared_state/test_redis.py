"""redis.py: several routers share limits, also over a killed and restarted server."""

import asyncio
import random
import signal
import time
from dataclasses import replace

import pytest

from chairlift.core.errors import RateLimited
from chairlift.router.shared_state.base import ChargeOutcome, TenantCharge
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter, SharedTenantReservation
from chairlift.web.tenant_limits import TenantLimits
from support_services_redis import RedisServer, raw_command
from support_shared_state import FAST, LIMITS, Routers, run_routers, until


def test_open_requests_are_counted_over_all_routers(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        reservations = [await first.begin("t") for _ in range(3)] + [await second.begin("t") for _ in range(2)]
        for limiter in routers.limiters:
            with pytest.raises(RateLimited, match="5 of your requests are open, the limit is 5"):
                await limiter.begin("t")
            (await limiter.begin("other")).end(0)
        reservations[0].end(0)
        await routers.states[0]._connection.flush()
        await second.begin("t")

    run_routers(server, test)


def test_tokens_are_counted_over_all_routers(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        reservation = await first.begin("t")
        await reservation.reserve(9_000)
        with pytest.raises(RateLimited, match="your tokens of this minute are used up") as caught:
            await second.begin("t", 2_000)
        assert caught.value.details["retry_after"] == pytest.approx(6, abs=1)
        reservation.end(100)
        await routers.states[0]._connection.flush()
        await second.begin("t", 9_000)

    run_routers(server, test)


def test_requests_are_counted_over_all_routers_however_they_interleave(server: RedisServer) -> None:
    """400 begins of one moment over 4 routers: 60 are accepted, and what a minute's rate adds meanwhile."""

    async def test(routers: Routers) -> None:
        started_at = time.monotonic()
        begins = [limiter.begin("t", 3) for _ in range(100) for limiter in routers.limiters]
        results = await asyncio.gather(*begins, return_exceptions=True)
        accepted = [each for each in results if isinstance(each, SharedTenantReservation)]
        assert all(isinstance(each, SharedTenantReservation | RateLimited) for each in results)
        assert 60 <= len(accepted) <= 61 + (time.monotonic() - started_at)
        for each in accepted:
            each.end(3)

    run_routers(server, test, TenantLimits(tenant_requests_per_minute=60), 4)
    assert "open:" not in raw_command(server.port, "HGETALL", "chairlift:tenant:t")


async def has_all_tokens(limiter: SharedTenantLimiter) -> bool:
    """Whether 9,500 of 10,000 tokens are free within some seconds: what was given back arrives a moment later."""
    for _ in range(100):
        begun: list[SharedTenantReservation] = []
        try:
            for _ in range(5):
                begun.append(await limiter.begin("t", 1_900))
            return True
        except RateLimited:
            for each in begun:
                each.end(0)
            await asyncio.sleep(0.05)
    return False


def test_a_cancelled_begin_gives_everything_back(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        rng, (first, second) = random.Random(4), routers.limiters
        for _ in range(200):
            task = asyncio.create_task(first.begin("t", 5_000))
            for _ in range(rng.randrange(1, 12)):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.gather(task, return_exceptions=True)
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().end(0)
        await asyncio.sleep(0.05)
        assert await has_all_tokens(second)

    run_routers(server, test, replace(LIMITS, tenant_requests_per_minute=None))


def test_the_open_requests_of_a_router_that_stopped_do_not_count(server: RedisServer) -> None:
    """A router that closes leaves at once; one that crashes leaves with its lease."""

    async def test(routers: Routers) -> None:
        first, second, third = routers.limiters
        for limiter in (first, second):
            await limiter.begin("t")
            await limiter.begin("t")
        await routers.states[0].close()
        for _ in range(3):
            await third.begin("t")
        with pytest.raises(RateLimited):
            await third.begin("t")
        crashed = routers.states[1]._connection
        assert crashed._task is not None
        crashed._task.cancel()
        started_at = time.monotonic()
        while True:
            try:
                await third.begin("t")
                break
            except RateLimited:
                assert time.monotonic() - started_at < 2
                await asyncio.sleep(0.01)
        assert time.monotonic() - started_at > 0.2

    run_routers(server, test, number=3, timing=replace(FAST, lease_seconds=0.5))


def test_a_router_that_stood_still_for_longer_than_its_lease_counts_again(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        for _ in range(4):
            await first.begin("t")
        raw_command(server.port, "ZREM", "chairlift:leases", routers.states[0]._connection.owner)
        await second.begin("t")
        await until(lambda: routers.states[0].status().num_outages == 1 and routers.are_connected)
        await routers.states[0]._connection.flush()
        with pytest.raises(RateLimited, match="5 of your requests are open"):
            await second.begin("t")

    run_routers(server, test)


def test_after_a_restart_without_data_the_routers_restore_what_they_know(own_server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        kept = [await first.begin("t", 1_000) for _ in range(3)]
        idle = await first.begin("idle")
        own_server.kill()
        await until(lambda: routers.are_disconnected)
        await second.begin("t", 2_000)
        kept.pop().end(1_000)
        own_server.start()
        await until(lambda: routers.are_connected)
        await asyncio.sleep(0.05)
        for _ in range(2):
            await second.begin("t")
        with pytest.raises(RateLimited, match="5 of your requests are open"):
            await second.begin("t")
        for _ in range(4):
            await second.begin("idle")
        with pytest.raises(RateLimited, match="5 of your requests are open"):
            await second.begin("idle")
        idle.end(0)
        kept.pop().end(1_000)
        with pytest.raises(RateLimited, match="your tokens of this minute are used up"):
            await first.begin("t", 5_800)  # 5,000 of 10,000 are used, and a second gives 167 back
        await first.begin("t", 4_500)

    run_routers(own_server, test)


def test_after_a_loss_of_all_data_the_usage_of_each_router_counts(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        await first.begin("t", 3_000)
        await second.begin("t", 2_000)
        raw_command(server.port, "FLUSHALL")
        await until(lambda: all(state.status().num_outages == 1 for state in routers.states) and routers.are_connected)
        for state in routers.states:
            await state.tenant_usage._sweep  # type: ignore[misc]
            await state._connection.flush()
        with pytest.raises(RateLimited, match="your tokens of this minute are used up"):
            await second.begin("t", 6_500)  # 5,000 are left, and what some seconds give back
        await second.begin("t", 4_900)

    run_routers(server, test)


@pytest.mark.parametrize("fault", ["kill", "stall"])
def test_no_request_fails_and_limits_hold_while_the_server_comes_and_goes(own_server: RedisServer, fault: str) -> None:
    """Two routers under load, three faults.

    Open requests never exceed the limit of each router; while Redis is there, they do not exceed the limit of both
    together. Requests of the minute never exceed each router's own.
    """

    async def test(routers: Routers) -> None:
        open_now, most_open, num_begun, is_running, longest = [0, 0], [0, 0], [0, 0], True, 0.0

        async def client(number: int, seed: int) -> None:
            nonlocal longest
            rng = random.Random(seed)
            while is_running:
                started_at = time.monotonic()
                try:
                    reservation = await routers.limiters[number].begin("t", 3)
                except RateLimited:
                    reservation = None
                longest = max(longest, time.monotonic() - started_at)
                if reservation is not None:
                    open_now[number] += 1
                    num_begun[number] += 1
                    most_open[number] = max(most_open[number], open_now[number])
                    await asyncio.sleep(rng.random() * 0.005)
                    open_now[number] -= 1
                    reservation.end(2)
                await asyncio.sleep(0.002)

        started_at = time.monotonic()
        clients = [asyncio.create_task(client(number, seed)) for seed in range(6) for number in (0, 1)]
        for _ in range(3):
            await asyncio.sleep(0.15)
            own_server.kill() if fault == "kill" else own_server.send_signal(signal.SIGSTOP)
            await until(lambda: routers.are_disconnected)
            await asyncio.sleep(0.1)
            own_server.start() if fault == "kill" else own_server.send_signal(signal.SIGCONT)
            await until(lambda: routers.are_connected)
        is_running = False
        await asyncio.gather(*clients)
        assert most_open[0] <= 5 and most_open[1] <= 5
        minutes = (time.monotonic() - started_at) / 60
        assert max(num_begun) <= 60_000 * (1 + minutes)
        assert min(num_begun) > 30 and longest < 1
        assert [state.status().num_outages for state in routers.states] == [3, 3]
        await asyncio.sleep(0.05)
        reservations = [await routers.limiters[number % 2].begin("t") for number in range(5)]
        with pytest.raises(RateLimited, match="5 of your requests are open"):
            await routers.limiters[0].begin("t")
        for each in reservations:
            each.end(0)

    timing = replace(FAST, call_seconds=0.2)
    run_routers(
        own_server,
        test,
        replace(LIMITS, tenant_requests_per_minute=60_000, tenant_tokens_per_minute=None),
        timing=timing,
    )


def test_many_tenants_are_reported_after_a_reconnection(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = routers.limiters
        tenants = [f"{number}" for number in range(500)]
        await asyncio.gather(*(first.begin(tenant) for tenant in tenants))
        raw_command(server.port, "FLUSHALL")
        await until(lambda: all(state.status().num_outages for state in routers.states) and routers.are_connected)
        for tenant in tenants:
            await until(
                lambda tenant=tenant: "open:" in raw_command(server.port, "HGETALL", f"chairlift:tenant:{tenant}")
            )  # type: ignore[misc]
        for tenant in tenants[::50]:
            with pytest.raises(RateLimited):
                await second.begin(tenant)

    run_routers(server, test, TenantLimits(tenant_max_open_requests=1))


def test_a_charge_without_a_server_is_unavailable(own_server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        own_server.kill()
        await until(lambda: routers.are_disconnected)
        table = routers.states[0].tenant_usage
        assert table.epoch == 0
        reply = await table.charge("t", LIMITS, TenantCharge(requests=1))
        assert reply.outcome is ChargeOutcome.UNAVAILABLE
        table.apply("t", LIMITS, TenantCharge(requests=1))

    run_routers(own_server, test)
