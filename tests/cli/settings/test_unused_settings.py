"""warn_unused_settings, unknown_variables: misspelled variables and settings without effect, never their values."""

import logging
from pathlib import Path

import pytest

from chairlift.cli.settings.unused_settings import unknown_variables, warn_unused_settings
from support_cli import parse_command
from support_shares import for_each


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "serve.yaml"
    file.write_text("model: from/file\nport: 81\nmax_tokens: 9\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(("name", "known_name"), [
    ("CHAIRLIFT_MAX_BATCH_TOKNS", "CHAIRLIFT_MAX_BATCH_TOKENS"), ("CHAIRLIFT_HOSTS", "CHAIRLIFT_HOST"),
    ("CHAIRLIFT_APIKEY", "CHAIRLIFT_API_KEY"), ("CHAIRLIFT_CONFIGS", "CHAIRLIFT_CONFIG"),
    ("CHAIRLIFT_DRAIN_TIMEOUTS", "CHAIRLIFT_DRAIN_TIMEOUT"),
])  # fmt: skip
def test_a_misspelled_variable_is_named_with_the_known_one(name: str, known_name: str) -> None:
    assert list(unknown_variables({name: "secret"})) == [(name, known_name)]


@for_each("name", [
    "CHAIRLIFT_PORT", "CHAIRLIFT_SERVICE_HOST", "CHAIRLIFT_SERVICE_PORT", "CHAIRLIFT_PORT_8000_TCP_ADDR",
    "CHAIRLIFT_FULL", "CHAIRLIFT_CPU_KERNELS", "CHAIRLIFT_CPU_LIBRARY", "CHAIRLIFT_BUILD_KERNELS", "HOSTS",
    "CHAIRLIFT_API_KEY", "CHAIRLIFT_CONFIG", "CHAIRLIFT_MODEL",
])  # fmt: skip
def test_other_variables_are_not_named(name: str) -> None:
    assert list(unknown_variables({name: "tcp://10.0.0.1:80"})) == []


def test_a_setting_without_effect_is_logged_without_its_value(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"CHAIRLIFT_APIKEY": "sk-1"}
    with caplog.at_level(logging.WARNING, logger="chairlift"):
        warn_unused_settings(parse_command("serve", "--config", str(path)), environ)
        warn_unused_settings(parse_command("generate", "--config", str(path)), {})
        warn_unused_settings(parse_command("key", "alice", "--config", str(path)), {})
        warn_unused_settings(parse_command("serve"), {})
    assert [record.getMessage() for record in caplog.records] == [
        "the environment variable CHAIRLIFT_APIKEY is unknown and has no effect; did you mean CHAIRLIFT_API_KEY?",
        f"{path}: `serve` does not read max_tokens", f"{path}: `generate` does not read port",
    ]  # fmt: skip
