"""Tests of configure_logging, log_config."""

import logging

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.log_setup import configure_logging


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
