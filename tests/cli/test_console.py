"""Console: quiet mode, progress bars, text without control characters, and the log."""

import argparse
import io
import json
import logging
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.console import Console, ServiceConsole
from chairlift.cli.log_setup import configure_logging
from chairlift.cli.settings.settings import LOGGING
from chairlift.core.errors import ConfigError
from chairlift.observability.logging import LEVELS, LogConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sentences_and_rows_go_to_the_file_unless_quiet() -> None:
    file = io.StringIO()
    Console(file=file).print_line("hello")
    Console(file=file).print_row("name", "value")
    Console(quiet=True, file=file).print_line("hush")
    assert file.getvalue().split() == ["hello", "name", "value"]


def test_a_progress_bar_needs_a_terminal_without_other_output() -> None:
    assert Console(file=Terminal()).shows_progress_bars([io.StringIO()])
    assert not Console(file=Terminal()).shows_progress_bars([Terminal()])
    assert not Console(file=io.StringIO()).shows_progress_bars([])
    assert not Console(quiet=True, file=Terminal()).shows_progress_bars([])


def configure(*words: str, **environ: str) -> None:
    """Configure the log as `chairlift generate WORDS` does."""
    configure_logging(build_parser().parse_args(["generate", *words]), environ)


def log_each_level() -> None:
    log = logging.getLogger("chairlift.test")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)("this is %s", level)


def logged_levels(text: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.splitlines()]


ALL = ["debug", "info", "warning", "error"]


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


def test_a_service_writes_its_lines_except_in_quiet_mode(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("chairlift"), "handlers", [logging.NullHandler()])
    for quiet in (False, True):
        console = ServiceConsole(quiet=quiet)
        console.print_line(f"quiet is {quiet}")
        console.close(0)
    assert capfd.readouterr().err == "quiet is False\n"
