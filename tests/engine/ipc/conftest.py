"""Fixture for the tests of EngineServer: makes server harnesses and closes their engines."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support_engine_server import ServerHarness


@pytest.fixture
def make_harness() -> Iterator[Callable[..., ServerHarness]]:
    made: list[ServerHarness] = []

    def make(*arguments: Any, **options: Any) -> ServerHarness:
        made.append(ServerHarness(*arguments, **options))
        return made[-1]

    yield make
    for harness in made:
        harness.engine.close()
