"""Sources of settings: the settings file, the model, names in errors, and warnings."""

import argparse
import logging
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.main import main
from chairlift.cli.settings.sources import load_settings_file, unknown_variables, warn_unused_settings
from chairlift.core.errors import ConfigError
from support_shares import for_each


def parse_command(*words: str, **environ: str) -> argparse.Namespace:
    """Parse a command line and read its settings file."""
    arguments = build_parser().parse_args(words)
    load_settings_file(arguments, environ)
    return arguments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "serve.yaml"
    file.write_text("model: from/file\nport: 81\nmax_tokens: 9\n", encoding="utf-8")
    return file


def test_a_file_is_named_by_flag_or_by_variable(path: Path, tmp_path: Path) -> None:
    assert parse_command("serve").settings_file is None
    assert parse_command("serve", CHAIRLIFT_CONFIG="").settings_file is None
    assert parse_command("serve", "--config", str(path)).settings_file.values.keys() == {"model", "port", "max_tokens"}
    assert parse_command("generate", CHAIRLIFT_CONFIG=str(path)).settings_file.path == str(path)
    (tmp_path / "other.yaml").write_text("", encoding="utf-8")
    both = parse_command("serve", "--config", str(tmp_path / "other.yaml"), CHAIRLIFT_CONFIG=str(path))
    assert both.settings_file.values == {} and both.model is None


def test_a_model_comes_from_the_same_places(path: Path) -> None:
    config = ("--config", str(path))
    assert parse_command("serve", *config).model == "from/file"
    assert parse_command("serve", *config, CHAIRLIFT_MODEL="from/variable").model == "from/variable"
    assert parse_command("serve", "from/word", *config, CHAIRLIFT_MODEL="from/variable").model == "from/word"
    assert parse_command("chat", "--url", "http://localhost", *config).model is None  # a model name of the server
    assert parse_command("chat", *config).model == "from/file"
    assert not hasattr(parse_command("bench", "simulate", *config), "model")


@pytest.mark.full
def test_a_bad_file_stops_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("prot: 8080\n", encoding="utf-8")
    for words in (
        ["serve"],
        ["generate"],
        ["chat"],
        ["doctor"],
        ["key", "a"],
        ["bench", "offline"],
        ["config", "show"],
    ):
        assert main([*words, "--config", str(bad)]) == 2
        message = f"chairlift: {bad} line 1: unknown key 'prot'; did you mean 'port'?\n"
        assert capsys.readouterr().err == message, words
    with pytest.raises(ConfigError):
        parse_command("serve", CHAIRLIFT_CONFIG=str(bad))


@pytest.mark.full
def test_an_error_names_the_setting_as_the_user_wrote_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("max_batch_tokens: 0\n", encoding="utf-8")
    assert main(["generate", "--config", str(path)]) == 2
    assert capsys.readouterr().err == f"chairlift: max_batch_tokens must be at least 1, got 0 ({path} line 1)\n"
    monkeypatch.setenv("CHAIRLIFT_TEMPERATURE", "5")
    assert main(["generate"]) == 2
    message = "chairlift: CHAIRLIFT_TEMPERATURE must be between 0 and 2, got 5.0\n"
    assert capsys.readouterr().err == message
    assert main(["generate", "--temperature", "5"]) == 2
    assert capsys.readouterr().err == "chairlift: --temperature must be between 0 and 2, got 5.0\n"


@pytest.mark.parametrize(("name", "known_name"), [
    ("CHAIRLIFT_MAX_BATCH_TOKNS", "CHAIRLIFT_MAX_BATCH_TOKENS"), ("CHAIRLIFT_HOSTS", "CHAIRLIFT_HOST"),
    ("CHAIRLIFT_APIKEY", "CHAIRLIFT_API_KEY"), ("CHAIRLIFT_CONFIGS", "CHAIRLIFT_CONFIG"),
    ("CHAIRLIFT_DRAIN_TIMEOUTS", "CHAIRLIFT_DRAIN_TIMEOUT"),
])  # fmt: skip
def test_a_misspelled_variable_is_named_with_the_known_one(name: str, known_name: str) -> None:
    assert list(unknown_variables({name: "secret"})) == [(name, known_name)]


@for_each("name", [
    "CHAIRLIFT_PORT", "CHAIRLIFT_SERVICE_HOST", "CHAIRLIFT_SERVICE_PORT", "CHAIRLIFT_PORT_8000_TCP_ADDR",
    "CHAIRLIFT_FULL", "HOSTS", "CHAIRLIFT_API_KEY", "CHAIRLIFT_CONFIG", "CHAIRLIFT_MODEL",
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
