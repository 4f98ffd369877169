"""A RunnerSpec builds a runner by name, or says in one sentence why it cannot."""

import msgspec
import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig


def test_a_spec_builds_what_it_names_from_its_bytes() -> None:
    config = FakeConfig(vocab_size=7, windows=(None, 5))
    runner = RunnerSpec("chairlift.engine.runner.fake:build", msgspec.msgpack.encode(config)).build()
    assert isinstance(runner, FakeRunner) and runner.config == config


@pytest.mark.parametrize(
    "factory", ["no.such.module:build", "chairlift.engine.runner.fake:no_such", "chairlift.engine.runner.fake"]
)
def test_a_factory_that_does_not_exist_is_named(factory: str) -> None:
    with pytest.raises(ConfigError, match=f"no runner factory '{factory}'"):
        RunnerSpec(factory).build()


def test_a_payload_is_not_printed() -> None:
    assert "secret" not in repr(RunnerSpec("a:b", b"secret"))
