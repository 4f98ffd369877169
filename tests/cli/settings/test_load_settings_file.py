"""load_settings_file: named by flag or variable, may give the model, and errors name settings as written."""

from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.core.errors import ConfigError
from support_cli import parse_command


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
