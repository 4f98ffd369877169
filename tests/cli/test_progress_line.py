"""ProgressLine: each text replaces the one before it, and a file or a quiet command has none."""

import io

import pytest

from chairlift.cli.progress_line import ERASED, ProgressLine
from support_cli import Terminal


def test_a_terminal_has_one_line_that_is_erased_also_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt):
        interrupted(ProgressLine(file=terminal))
    assert terminal.getvalue() == f"{ERASED}one{ERASED}{'x' * 8}\N{HORIZONTAL ELLIPSIS}{ERASED}"


def interrupted(progress: ProgressLine) -> None:
    with progress:
        progress.show("one")
        progress.show("x" * 50)
        raise KeyboardInterrupt


def test_a_file_and_a_hidden_line_and_a_dumb_terminal_have_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ((io.StringIO(), True, "xterm"), (Terminal(), False, "xterm"), (Terminal(), True, "dumb"))
    for file, is_shown, name in cases:
        monkeypatch.setenv("TERM", name)
        with ProgressLine(is_shown=is_shown, file=file) as progress:
            progress.show("one")
        assert file.getvalue() == ""
