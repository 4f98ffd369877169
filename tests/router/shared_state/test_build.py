"""build.py: "" is memory, a URL is Redis, and a URL with a mistake is a ConfigError."""

import asyncio
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.shared_state.build import create_shared_state


def test_without_a_url_the_state_is_local() -> None:
    assert create_shared_state().status().backend == "local"


def test_a_url_is_redis_and_its_password_is_not_shown(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "password").write_text("s3cret")
        state = create_shared_state("redis://me:other@h:1/2", password_file=str(tmp_path / "password"))
        assert state.status().backend == "redis"
        assert state.status().address == "h:1/2"
        assert not state.status().is_connected
        assert state.tenant_usage is not None

    asyncio.run(run())


def test_another_url_is_rejected() -> None:
    with pytest.raises(ConfigError, match="must look like redis://host:port/db"):
        create_shared_state("memcached://h")
