"""build.py: "" is memory, a URL is Redis, and a URL or a file with a mistake is a ConfigError."""

import asyncio
from pathlib import Path

from chairlift.router.shared_state.build import create_shared_state
from chairlift.router.shared_state.shared_state_config import SharedStateConfig


def test_without_a_url_the_state_is_local() -> None:
    SharedStateConfig().check_files()
    assert create_shared_state(SharedStateConfig()).status().backend == "local"


def test_a_url_is_redis_and_its_password_is_not_shown(tmp_path: Path) -> None:
    async def run() -> None:
        config = SharedStateConfig(url="redis://me:s3cret@h:1/2")
        state = create_shared_state(config)
        assert "s3cret" not in repr(config)
        assert state.status().backend == "redis"
        assert state.status().address == "h:1/2"
        assert not state.status().is_connected
        assert state.tenant_usage is not None

    asyncio.run(run())
