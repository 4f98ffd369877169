"""A Redis with a password behind a Sentinel with another one: both come from files and are never shown."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.redis_connection import RedisTiming
from chairlift.router.shared_state.redis_url import RedisTarget
from support_services_redis import HOST, RedisServer, SentinelServer, raw_command
from support_shared_state import until

REDIS_PASSWORD, SENTINEL_PASSWORD = "hunter2-redis", "hunter2-sentinel"
TIMING = RedisTiming(call_seconds=1, retry_seconds=0.05, renew_seconds=0.05)


@dataclass
class ProtectedServers:
    """A server and its Sentinel, and the files with their passwords."""

    master: RedisServer
    sentinel: SentinelServer
    password_file: Path
    sentinel_password_file: Path

    def state(self, *, has_sentinel_password: bool = True) -> RedisSharedState:
        target = RedisTarget.parse(
            f"redis+sentinel://{HOST}:{self.sentinel.port}/fleet/0", password_file=self.password_file,
            sentinel_password_file=self.sentinel_password_file if has_sentinel_password else None,
        )  # fmt: skip
        return RedisSharedState(RedisStateConfig(target=target, timing=TIMING))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ProtectedServers]:
    master = RedisServer(tmp_path / "master", "--requirepass", REDIS_PASSWORD).start()
    options = [f"sentinel auth-pass fleet {REDIS_PASSWORD}", f"requirepass {SENTINEL_PASSWORD}"]
    sentinel = SentinelServer(tmp_path / "sentinel", master, options=options)
    password_file, sentinel_password_file = tmp_path / "password", tmp_path / "sentinel-password"
    password_file.write_text(REDIS_PASSWORD + "\n")
    sentinel_password_file.write_text(SENTINEL_PASSWORD + "\n")
    try:
        sentinel.start()
        yield ProtectedServers(master, sentinel, password_file, sentinel_password_file)
    finally:
        sentinel.stop()
        master.stop()


def test_both_passwords_come_from_their_files(servers: ProtectedServers, caplog: pytest.LogCaptureFixture) -> None:
    """A connection after a change of a file uses the new password, without a restart of the router."""
    renewed = "hunter2-renewed"

    async def run() -> None:
        state = servers.state()
        await state.start()
        assert state.status().is_connected, state.status()
        assert await state.sessions.assign("user", "r1") == "r1"
        reply = raw_command(servers.master.port, "AUTH", REDIS_PASSWORD)
        assert reply.startswith("+OK")
        servers.password_file.write_text(renewed)
        servers.master.kill()
        servers.master.options = ["--requirepass", renewed]
        await until(lambda: not state.status().is_connected)
        servers.master.start()
        await until(lambda: state.status().is_connected)
        await state.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert "hunter2" not in caplog.text


def test_a_state_that_is_closed_while_it_connects_ends(servers: ProtectedServers) -> None:
    """The library takes a cancellation at some moments of a connection's start for an error of the connection."""

    async def run() -> None:
        for number in range(25):
            state = servers.state()
            await state.start()
            for _ in range(number):
                await asyncio.sleep(0)
            await asyncio.wait_for(state.close(), 5)

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["no password", "wrong password", "no file"])
def test_sentinels_that_refuse_leave_the_local_state_with_the_reason(
    servers: ProtectedServers, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    reason = {"no password": "authenticated", "wrong password": "invalid", "no file": "cannot read"}[fault]
    if fault == "wrong password":
        servers.sentinel_password_file.write_text("hunter2-wrong")
    if fault == "no file":
        servers.sentinel_password_file.unlink()

    async def run() -> None:
        state = servers.state(has_sentinel_password=fault != "no password")
        await state.start()
        assert not state.status().is_connected
        assert reason.lower() in state.status().error.lower() and "hunter2" not in state.status().error
        await state.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert "is unavailable" in caplog.text and "hunter2" not in caplog.text


def test_a_message_of_the_library_is_reported_without_the_passwords(
    servers: ProtectedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of the library name every option of a connection, also its password."""
    from redis.asyncio import Redis

    async def fail(self: Redis) -> None:
        raise ConnectionError(f"password={SENTINEL_PASSWORD}, {REDIS_PASSWORD}")

    monkeypatch.setattr(Redis, "sentinel_masters", fail)

    async def run() -> None:
        state = servers.state()
        await state.start()
        assert state.status().error.endswith("password=***, ***")
        await state.close()

    asyncio.run(run())
