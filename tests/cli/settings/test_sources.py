"""Sources: which file a command reads, whose model it runs, and what somebody has set in vain."""

import argparse
import logging
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.main import main
from chairlift.cli.settings.sources import load_settings_file, setting_origin, unknown_variables, warn_unread_settings
from chairlift.core.errors import ConfigError


def taken(*words: str, **environ: str) -> argparse.Namespace:
    """Parse a command line and read its file."""
    arguments = build_parser().parse_args(words)
    load_settings_file(arguments, environ)
    return arguments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "serve.yaml"
    found.write_text("model: from/file\nport: 81\nmax_tokens: 9\n", encoding="utf-8")
    return found


def test_a_file_is_named_by_flag_or_by_variable(path: Path, tmp_path: Path) -> None:
    assert taken("serve").file is None
    assert taken("serve", CHAIRLIFT_CONFIG="").file is None
    assert taken("serve", "--config", str(path)).file.values.keys() == {"model", "port", "max_tokens"}
    assert taken("generate", CHAIRLIFT_CONFIG=str(path)).file.path == str(path)
    (tmp_path / "other.yaml").write_text("", encoding="utf-8")
    both = taken("serve", "--config", str(tmp_path / "other.yaml"), CHAIRLIFT_CONFIG=str(path))
    assert both.file.values == {} and both.model is None


def test_a_model_comes_from_the_same_places(path: Path) -> None:
    config = ("--config", str(path))
    assert taken("serve", *config).model == "from/file"
    assert taken("serve", *config, CHAIRLIFT_MODEL="from/variable").model == "from/variable"
    assert taken("serve", "from/word", *config, CHAIRLIFT_MODEL="from/variable").model == "from/word"
    assert taken("chat", "--url", "http://localhost", *config).model is None  # a server's models have other names
    assert taken("chat", *config).model == "from/file"
    assert not hasattr(taken("bench", "simulate", *config), "model")


def test_a_bad_file_stops_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("prot: 8080\n", encoding="utf-8")
    for words in (["serve"], ["generate"], ["chat"], ["doctor"], ["key", "a"], ["bench", "cost"], ["config", "show"]):
        assert main([*words, "--config", str(bad)]) == 2
        said = f"chairlift: {bad} line 1: unknown key 'prot', did you mean 'port'?\n"
        assert capsys.readouterr().err == said, words
    with pytest.raises(ConfigError):
        taken("serve", CHAIRLIFT_CONFIG=str(bad))


def test_an_error_names_the_variable_or_the_line_that_made_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("max_batch_tokens: 0\n", encoding="utf-8")
    assert main(["generate", "--config", str(path)]) == 2
    assert capsys.readouterr().err == f"chairlift: max_batch_tokens must be at least 1, got 0 ({path} line 1)\n"
    monkeypatch.setenv("CHAIRLIFT_TEMPERATURE", "5")
    assert main(["generate"]) == 2
    said = "chairlift: temperature must be between 0 and 2, got 5.0 (CHAIRLIFT_TEMPERATURE)\n"
    assert capsys.readouterr().err == said
    flags = taken("generate", "--temperature", "5")
    assert setting_origin({"param": "temperature"}, flags, {"CHAIRLIFT_TEMPERATURE": "5"}) is None
    assert setting_origin({}, flags, {}) is None


@pytest.mark.parametrize(("name", "meant"), [
    ("CHAIRLIFT_MAX_BATCH_TOKNS", "CHAIRLIFT_MAX_BATCH_TOKENS"), ("CHAIRLIFT_HOSTS", "CHAIRLIFT_HOST"),
    ("CHAIRLIFT_APIKEY", "CHAIRLIFT_API_KEY"), ("CHAIRLIFT_CONFIGS", "CHAIRLIFT_CONFIG"),
    ("CHAIRLIFT_DRAIN_TIMEOUTS", "CHAIRLIFT_DRAIN_TIMEOUT"),
])  # fmt: skip
def test_a_variable_that_is_almost_one_is_named_with_it(name: str, meant: str) -> None:
    assert list(unknown_variables({name: "secret"})) == [(name, meant)]


@pytest.mark.parametrize("name", [
    "CHAIRLIFT_PORT", "CHAIRLIFT_SERVICE_HOST", "CHAIRLIFT_SERVICE_PORT", "CHAIRLIFT_PORT_8000_TCP_ADDR",
    "CHAIRLIFT_FULL", "HOSTS", "CHAIRLIFT_API_KEY", "CHAIRLIFT_CONFIG", "CHAIRLIFT_MODEL",
])  # fmt: skip
def test_others_are_not(name: str) -> None:
    assert list(unknown_variables({name: "tcp://10.0.0.1:80"})) == []


def test_what_is_set_in_vain_is_logged_without_its_value(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"CHAIRLIFT_APIKEY": "sk-1"}
    with caplog.at_level(logging.WARNING, logger="chairlift"):
        warn_unread_settings(taken("serve", "--config", str(path)), environ)
        warn_unread_settings(taken("generate", "--config", str(path)), {})
        warn_unread_settings(taken("key", "alice", "--config", str(path)), {})
        warn_unread_settings(taken("serve"), {})
    assert [record.getMessage() for record in caplog.records] == [
        "nothing reads CHAIRLIFT_APIKEY of the environment; did you mean CHAIRLIFT_API_KEY?",
        f"{path}: nothing of `serve` reads max_tokens", f"{path}: nothing of `generate` reads port",
    ]  # fmt: skip
