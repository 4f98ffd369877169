"""What a rejected command line prints."""

import argparse
import io

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.settings.load_settings_file import load_settings_file


def rejection_sentence(capsys: pytest.CaptureFixture[str], exit_code: int) -> str:
    """Return the one sentence of a command that was rejected with this exit code."""
    assert exit_code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("chairlift: ")
    return err.removeprefix("chairlift: ").rstrip("\n")


def parse_command(*words: str, **environ: str) -> argparse.Namespace:
    """Parse a command line and read its settings file."""
    arguments = build_parser(words).parse_args(words)
    load_settings_file(arguments, environ)
    return arguments


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
