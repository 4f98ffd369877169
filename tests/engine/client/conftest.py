"""Fixtures for the tests of the engine clients: an InlineClient on a fake runner, free-running or held by a gate."""

from collections.abc import Iterator

import pytest

from chairlift.engine.client.inline import InlineClient
from chairlift.engine.runner.fake import FakeRunner
from support_inline import FAKE, StepGate, start_client


@pytest.fixture
def client() -> Iterator[InlineClient]:
    client = start_client()
    yield client
    client.close()


@pytest.fixture
def gate() -> StepGate:
    return StepGate()


@pytest.fixture
def gated_client(gate: StepGate) -> Iterator[InlineClient]:
    client = start_client(FakeRunner(FAKE, hook=gate), max_queue_size=1)
    yield client
    gate.opened.set()
    client.close()
