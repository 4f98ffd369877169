"""Fixtures: one Redis server for a module's tests, emptied before each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support_services_redis import RedisServer, raw_command


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server without data, for tests that do not end it."""
    raw_command(shared_server.port, "FLUSHALL")
    return shared_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone, which may kill it."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()
