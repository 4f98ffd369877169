"""redis_connection.py: no call waits longer than its limit, and a lost connection comes back with a new lease."""

import asyncio
import builtins
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.shared_state import redis_scripts
from chairlift.router.shared_state.redis_connection import MAX_QUEUED_CALLS, RedisConnection, RedisTiming
from chairlift.router.shared_state.redis_url import RedisTarget
from support_certificates import CertificateAuthority
from support_services_redis import HOST, RedisServer, free_port, raw_command
from support_shared_state import until

FAST = RedisTiming(call_seconds=1, retry_seconds=0.05, renew_seconds=0.05, lease_seconds=5)
LOGGER = "chairlift.router.shared_state.redis_connection"
ECHO = "return {'taken', ARGV[1]}"
"""A script for tests, which the connection has to load like the others."""


def run_connected(
    target: RedisTarget, test: Callable[[RedisConnection], Awaitable[None]], timing: RedisTiming = FAST, **options: Any
) -> None:
    async def run() -> None:
        connection = RedisConnection(target, timing=timing, **options)
        await connection.start()
        try:
            await test(connection)
        finally:
            await connection.close()

    asyncio.run(run())


def target_of(server: RedisServer) -> RedisTarget:
    return RedisTarget.parse(server.url)


@pytest.fixture(autouse=True)
def load_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_scripts, "SCRIPTS", (*redis_scripts.SCRIPTS, ECHO))


async def echo(connection: RedisConnection, text: str = "x") -> str | None:
    reply = await connection.call(ECHO, [], [text])
    return None if reply is None else reply[1]


def test_calls_of_one_moment_share_a_round_trip_and_keep_their_order(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        replies = await asyncio.gather(*(echo(connection, f"{number}") for number in range(1000)))
        assert replies == [f"{number}" for number in range(1000)]
        script = "return {'taken', tostring(redis.call('RPUSH', KEYS[1], ARGV[1]))}"
        redis_scripts.SCRIPTS += (script,)  # type: ignore[assignment]
        connection._break("loads the script")
        await until(lambda: connection.epoch == 2)
        futures = [connection.send(script, ["list"], [f"{number}"]) for number in range(600)]
        assert [(await connection.wait(each) or [])[1] for each in futures] == [f"{n}" for n in range(1, 601)]

    run_connected(target_of(server), test)


def test_a_text_that_is_no_utf8_breaks_nothing(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        assert await echo(connection, "\ud800 and \x00") == "\\ud800 and \x00"
        assert connection.epoch == 1

    run_connected(target_of(server), test)


def test_the_status_says_where_it_is_connected(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        status = connection.status()
        assert (status.backend, status.address, status.is_connected) == ("redis", f"{HOST}:{server.port}/0", True)
        assert (status.num_outages, status.outage_seconds, status.error) == (0, 0.0, "")

    run_connected(target_of(server), test)


def test_a_server_that_is_not_there_delays_the_start_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    async def test(connection: RedisConnection) -> None:
        assert connection.epoch == 0
        assert await echo(connection) is None
        await asyncio.sleep(0.2)  # three more attempts
        assert connection.status().outage_seconds >= 0.2

    started_at = time.monotonic()
    run_connected(RedisTarget(hosts=((HOST, free_port()),)), test)
    assert time.monotonic() - started_at < 2
    records = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(records) == 1
    assert "is unavailable" in records[0] and "its own limits" in records[0]


def test_a_killed_server_fails_no_call_and_is_found_again(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(connection: RedisConnection) -> None:
        longest, is_running = [0.0], True

        async def load() -> int:
            num_calls = 0
            while is_running:
                started_at = time.monotonic()
                assert await echo(connection) in {"x", None}
                longest[0] = max(longest[0], time.monotonic() - started_at)
                num_calls += 1
                await asyncio.sleep(0.001)
            return num_calls

        clients = [asyncio.create_task(load()) for _ in range(8)]
        for epoch in (2, 3):
            own_server.kill()
            await until(lambda: connection.epoch == 0)
            assert await echo(connection) is None
            assert connection.status().error
            own_server.start()
            await until(lambda epoch=epoch: connection.epoch == epoch)  # type: ignore[misc]
            assert await echo(connection) == "x"
        is_running = False
        assert min(await asyncio.gather(*clients)) > 10
        assert connection.status().num_outages == 2
        assert longest[0] < 1

    with caplog.at_level(logging.INFO, LOGGER):
        run_connected(target_of(own_server), test)
    messages = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert [("unavailable" in message, "available again" in message) for message in messages] == [
        (True, False), (False, True), (True, False), (False, True),
    ]  # fmt: skip


def test_a_stalled_server_delays_calls_once_and_then_none(own_server: RedisServer) -> None:
    """100 calls of one moment wait 50 ms together; while the circuit is open no call waits at all."""

    async def test(connection: RedisConnection) -> None:
        own_server.send_signal(signal.SIGSTOP)
        started_at = time.monotonic()
        assert await asyncio.gather(*(echo(connection) for _ in range(100))) == [None] * 100
        assert 0.04 < time.monotonic() - started_at < 20 * 0.05
        started_at = time.monotonic()
        for _ in range(1000):
            assert await echo(connection) is None
        assert time.monotonic() - started_at < 100 * 0.05
        assert "within 50 ms" in connection.status().error
        own_server.send_signal(signal.SIGCONT)
        await until(lambda: connection.epoch == 2)
        assert await echo(connection) == "x"

    run_connected(target_of(own_server), test, RedisTiming(retry_seconds=0.3, renew_seconds=30))


def test_flush_waits_for_the_calls_that_are_queued(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        await connection.flush()
        futures = [connection.send(ECHO, [], ["x"]) for _ in range(300)]
        await connection.flush()
        assert all(future.done() for future in futures)

    run_connected(target_of(server), test)


def test_a_stalled_server_is_noticed_without_calls(own_server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        own_server.send_signal(signal.SIGSTOP)
        await until(lambda: connection.epoch == 0)
        own_server.send_signal(signal.SIGCONT)

    run_connected(target_of(own_server), test, RedisTiming(renew_seconds=0.05))


def test_a_busy_event_loop_is_no_outage(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        reply = connection.send(ECHO, [], ["x"])
        task = asyncio.create_task(connection.wait(reply))
        await asyncio.sleep(0)
        time.sleep(0.12)  # more than twice the limit of a call
        assert await task == ["taken", "x"]
        assert connection.status().num_outages == 0

    run_connected(target_of(server), test, RedisTiming(renew_seconds=30))


def test_a_lost_lease_begins_a_new_epoch(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        epochs: list[int] = []
        connection.add_listener(lambda: epochs.append(connection.epoch))
        first = connection.owner
        raw_command(server.port, "ZREM", "chairlift:leases", first)
        await until(lambda: connection.epoch == 2)
        assert epochs == [2]
        assert connection.owner != first
        leases = raw_command(server.port, "ZRANGE", "chairlift:leases", "0", "-1")
        assert connection.owner in leases and first not in leases

    run_connected(target_of(server), test)


def test_the_lease_is_renewed_while_nothing_else_happens(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        renewals: list[list[str]] = []
        connection.set_renewal_listener(renewals.append)
        await until(lambda: len(renewals) >= 45)  # longer than the lease
        assert connection.epoch == 1

    run_connected(target_of(server), test, RedisTiming(lease_seconds=2.0, renew_seconds=0.05))


def test_close_ends_the_lease(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        assert connection.owner in raw_command(server.port, "ZRANGE", "chairlift:leases", "0", "-1")

    run_connected(target_of(server), test)
    assert raw_command(server.port, "ZCARD", "chairlift:leases") == ":0\r\n"


def test_a_queue_that_is_too_long_is_an_outage(server: RedisServer) -> None:
    async def test(connection: RedisConnection) -> None:
        futures = [connection.send(ECHO, [], ["x"]) for _ in range(MAX_QUEUED_CALLS + 1)]
        assert connection.epoch == 0
        assert [await connection.wait(each) for each in futures] == [None] * len(futures)
        assert f"the limit is {MAX_QUEUED_CALLS}" in connection.status().error

    run_connected(target_of(server), test)


@pytest.mark.parametrize(("word", "is_connected"), [("hunter2", True), ("wrong-hunter2", False)])
def test_the_password_is_used_and_never_logged(
    tmp_path: Path, word: str, is_connected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, "--requirepass", "hunter2").start()

    async def test(connection: RedisConnection) -> None:
        assert (connection.epoch == 1) == is_connected
        assert is_connected or "WRONGPASS" in connection.status().error or "invalid" in connection.status().error

    try:
        with caplog.at_level(logging.DEBUG):
            run_connected(RedisTarget.parse(f"redis://:{word}@{HOST}:{server.port}"), test)
    finally:
        server.stop()
    assert "hunter2" not in caplog.text


def test_a_connection_with_tls_checks_the_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "authority")
    certificate, key = authority.issue("redis")
    port = free_port()
    server = RedisServer(
        tmp_path / "redis", "--tls-port", f"{port}", "--tls-cert-file", f"{certificate}", "--tls-key-file", f"{key}",
        "--tls-ca-cert-file", f"{authority.file}", "--tls-auth-clients", "no",
    ).start()  # fmt: skip

    async def connected(connection: RedisConnection) -> None:
        assert await echo(connection) == "x"

    async def rejected(connection: RedisConnection) -> None:
        assert connection.epoch == 0
        assert "certificate" in connection.status().error.lower()

    try:
        target = RedisTarget.parse(f"rediss://{HOST}:{port}")
        run_connected(target, connected, ca_file=str(authority.file))
        run_connected(target, rejected)
    finally:
        server.stop()


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def blocked(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "redis":
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(ConfigError, match=r"pip install 'chairlift\[redis\]'"):
        RedisConnection(RedisTarget(hosts=(("h", 1),)))
