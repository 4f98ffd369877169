"""configure_logging: flags and environment choose level, format and files of the log; invalid ones are errors."""

import argparse
import json
import logging
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.log_setup import configure_logging
from chairlift.cli.settings.settings import LOGGING
from chairlift.core.errors import ConfigError
from chairlift.observability.logging import LEVELS, LogConfig


def configure(*words: str, **environ: str) -> None:
    """Configure the log as `chairlift generate WORDS` does."""
    configure_logging(build_parser(["generate"]).parse_args(["generate", *words]), environ)


def log_each_level() -> None:
    log = logging.getLogger("chairlift.test")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)("this is %s", level)


def logged_levels(text: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.splitlines()]


ALL = ["debug", "info", "warning", "error"]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "levels"),
    [
        ([], ALL[2:]), (["-q"], ALL[3:]), (["-v"], ALL), (["--log-level", "info"], ALL[1:]),
        (["-q", "--log-level", "debug"], ALL[3:]), (["-v", "--log-level", "error"], ALL[3:]),
    ],
)  # fmt: skip
def test_the_flags_choose_the_level_of_the_log(
    capsys: pytest.CaptureFixture[str], words: list[str], levels: list[str]
) -> None:
    configure()
    configure(*words)
    log_each_level()
    assert logged_levels(capsys.readouterr().err) == levels


def test_quiet_is_for_standard_error_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    configure("-q", "--log-file", str(tmp_path / "log"), "--log-level", "info")
    log_each_level()
    assert logged_levels(capsys.readouterr().err) == ALL[3:]
    assert logged_levels((tmp_path / "log").read_text()) == ALL[1:]


def test_the_environment_configures_the_log_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    configure(CHAIRLIFT_LOG_FORMAT="json", CHAIRLIFT_LOG_LEVEL="error", CHAIRLIFT_LOG_FILE=str(tmp_path / "log"))
    log_each_level()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "this is error"
    assert (tmp_path / "log").read_text().splitlines() == [line]


def test_log_files_are_rotated_by_size(tmp_path: Path) -> None:
    configure("-q", "--log-file", str(tmp_path / "log"), "--log-file-size", "1KB", "--log-backups", "2")
    for _ in range(100):
        log_each_level()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_an_invalid_log_setting_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere"):
        configure("--log-file", str(tmp_path / "nowhere" / "log"))
    with pytest.raises(
        argparse.ArgumentTypeError, match="CHAIRLIFT_LOG_LEVEL must be one of debug, info, warning, error, got 'loud'"
    ):
        configure(CHAIRLIFT_LOG_LEVEL="loud")


def test_the_help_shows_the_defaults_of_the_log() -> None:
    defaults = {setting.name: setting.parse(str(setting.default)) for setting in LOGGING if setting.default != ""}
    config = LogConfig()
    assert LEVELS[defaults.pop("log_level")] == config.level == config.stream_level
    names = {"log_format": config.form, "log_file_size": config.max_bytes, "log_backups": config.backups}
    assert defaults == names
