"""redis.py: sessions and ejections of several routers, also over a killed and restarted server."""

import asyncio
import time
from dataclasses import replace

import pytest

from chairlift.core.clock import FakeClock
from chairlift.router.shared_state.base import SharedEjection
from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.redis_connection import RedisTiming
from chairlift.router.shared_state.redis_url import RedisTarget
from support_services_redis import RedisServer, raw_command
from support_shared_state import FAST, Routers, run_routers, until

# -- sessions ------------------------------------------------------------------------------------------------------


def test_all_routers_see_one_replica_of_a_session(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = (state.sessions for state in routers.states)
        assert await first.get("user") is None
        assert await first.assign("user", "r1") == "r1"
        assert await second.assign("user", "r2") == "r1"
        assert await second.get("user") == "r1"
        assert await second.assign("user", "r2", replacing="r1") == "r2"
        assert await first.get("user") == "r2"
        assert "user" not in raw_command(server.port, "HGETALL", "chairlift:sessions")

    run_routers(server, test)


def test_routers_that_assign_at_one_moment_agree(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        for number in range(50):
            assigned = await asyncio.gather(
                *(state.sessions.assign(f"{number}", f"r{index}") for index, state in enumerate(routers.states))
            )
            assert len(set(assigned)) == 1

    run_routers(server, test, number=4)


def test_sessions_expire_and_are_bounded(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        sessions = routers.states[0].sessions
        for number in range(30):
            await sessions.assign(f"{number}", "r1")
            await sessions.get("0")
        assert raw_command(server.port, "HLEN", "chairlift:sessions") == ":10\r\n"
        assert raw_command(server.port, "ZCARD", "chairlift:session_times") == ":10\r\n"
        other = routers.states[1].sessions
        assert [await other.get(key) for key in ("0", "29", "1")] == ["r1", "r1", None]
        await asyncio.sleep(0.35)
        assert await other.get("0") is None
        assert await other.assign("29", "r2") == "r2"
        assert raw_command(server.port, "HLEN", "chairlift:sessions") == ":1\r\n"

    run_routers(server, test, session_ttl_seconds=0.3, max_sessions=10)


def test_a_router_keeps_its_sessions_in_an_outage_and_restores_them(own_server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = (state.sessions for state in routers.states)
        await first.assign("a", "r1")
        own_server.kill()
        await until(lambda: routers.are_disconnected)
        assert await first.get("a") == "r1"
        assert await second.get("a") is None
        assert await second.assign("b", "r2") == "r2"
        own_server.start()
        await until(lambda: routers.are_connected)
        assert await first.get("a") == "r1"
        assert await second.get("b") == "r2"
        assert (await second.get("a"), await first.get("b")) == ("r1", "r2")

    run_routers(own_server, test)


# -- ejections -----------------------------------------------------------------------------------------------------


def test_an_ejection_reaches_the_other_routers_and_not_its_own(server: RedisServer) -> None:
    assert RedisTiming().renew_seconds < 1  # where no message arrives, another router knows within a second

    async def test(routers: Routers) -> None:
        events: list[list[SharedEjection]] = [[], [], []]
        for state, heard in zip(routers.states, events, strict=True):
            state.ejections.add_listener(heard.append)
        await asyncio.sleep(0.05)
        routers.states[0].ejections.eject("http://r1", 30, "3 failures in a row\nand more")
        await until(lambda: bool(events[1] and events[2]))
        ejection = events[1][0]  # a renewal that was read before the message may report it once more
        now = time.monotonic()
        assert (ejection.replica_id, ejection.reason) == ("http://r1", "3 failures in a row\nand more")
        assert now + 20 < ejection.until <= now + 30
        # A renewal that was read before the message may arrive behind it; the next one has the ejection again.
        await until(lambda: list(routers.states[1].ejections.of_other_routers(now)) == ["http://r1"])
        assert routers.states[1].ejections.of_other_routers(now)["http://r1"].reason == ejection.reason
        assert routers.states[1].ejections.of_other_routers(now + 31) == {}
        routers.states[0].ejections.restore("http://r1")
        await until(lambda: all(heard[-1].until <= time.monotonic() for heard in events[1:]))
        await routers.wait_for_renewals(2)  # a renewal that was read before the end may arrive behind it, too
        assert all(heard[-1].until <= time.monotonic() for heard in events[1:])
        assert routers.states[1].ejections.of_other_routers(time.monotonic()) == {}
        numbers = [len(heard) for heard in events]
        await routers.wait_for_renewals(3)  # nothing new is reported
        assert [len(heard) for heard in events] == numbers and numbers[0] == 0

    run_routers(server, test, number=3)


@pytest.mark.share(1)
@pytest.mark.parametrize("path", ["message", "renewal"])
def test_either_path_alone_carries_ejections(server: RedisServer, path: str) -> None:
    async def test(routers: Routers) -> None:
        listener = routers.states[1].ejections
        assert listener._subscription is not None
        if path == "renewal":
            listener._subscription.cancel()
        else:
            await asyncio.sleep(0.1)
        routers.states[0].ejections.eject("r1", 30, "slow")
        await until(lambda: "r1" in listener.of_other_routers(time.monotonic()))
        routers.states[0].ejections.restore("r1")
        await until(lambda: listener.of_other_routers(time.monotonic()) == {})

    timing = replace(FAST, renew_seconds=0.9 if path == "renewal" else 60)
    run_routers(server, test, timing=timing)


def test_one_routers_return_leaves_the_ejection_of_another(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second, third = (state.ejections for state in routers.states)
        first.eject("r1", 20, "slow")
        second.eject("r1", 40, "refused")
        await until(lambda: len(third._others) == 2)
        assert third.of_other_routers(time.monotonic())["r1"].reason == "refused"
        second.restore("r1")
        await until(lambda: third.of_other_routers(time.monotonic())["r1"].reason == "slow")
        second.restore("r1")  # a second time has no effect

    run_routers(server, test, number=3)


def test_ejections_expire_and_survive_the_loss_of_the_servers_data(own_server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = (state.ejections for state in routers.states)
        first.eject("r1", 30, "slow")
        first.eject("short", 0.2, "slow")
        await until(lambda: "r1" in second.of_other_routers(time.monotonic()))
        own_server.kill()
        await until(lambda: routers.are_disconnected)
        assert "r1" in second.of_other_routers(time.monotonic())
        first.eject("r2", 30, "in the outage")
        await asyncio.sleep(0.2)
        own_server.start()
        await until(lambda: routers.are_connected)
        await until(lambda: set(second.of_other_routers(time.monotonic())) == {"r1", "r2"})
        assert "short" not in raw_command(own_server.port, "HGETALL", "chairlift:ejections")
        assert 0 < int(raw_command(own_server.port, "PTTL", "chairlift:ejections")[1:]) <= 30_000

    run_routers(own_server, test)


def test_a_router_that_closes_takes_its_ejections_back(server: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        first, second = (state.ejections for state in routers.states)
        first.eject("r1", 30, "slow")
        await until(lambda: "r1" in second.of_other_routers(time.monotonic()))
        await routers.states[0].close()
        await until(lambda: second.of_other_routers(time.monotonic()) == {})

    run_routers(server, test)


def test_fleets_with_different_prefixes_share_nothing(server: RedisServer) -> None:
    async def run() -> None:
        states = [
            RedisSharedState(RedisStateConfig(target=RedisTarget.parse(server.url), prefix=name, timing=FAST))
            for name in ("one", "two")
        ]
        for state in states:
            await state.start()
        await states[0].sessions.assign("a", "r1")
        states[0].ejections.eject("r1", 30, "slow")
        await asyncio.sleep(0.15)
        assert await states[1].sessions.get("a") is None
        assert states[1].ejections.of_other_routers(FakeClock().now()) == {}
        for state in states:
            await state.close()

    asyncio.run(run())
