"""ProgressLine: each text replaces the one before it, and a file or a quiet command has none."""

import io

import pytest

from chairlift.cli.progress_line import ERASED, ProgressLine
from support_cli import Terminal


def test_a_terminal_has_one_line_that_is_erased_also_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt):
        interrupted(ProgressLine(file=terminal))
    assert terminal.getvalue() == f"{ERASED}one{ERASED}{'x' * 9}{ERASED}"


def interrupted(progress: ProgressLine) -> None:
    with progress:
        progress.show("one")
        progress.show("x" * 50)
        raise KeyboardInterrupt


def test_a_file_and_a_hidden_line_have_no_progress() -> None:
    for file, is_shown in ((io.StringIO(), True), (Terminal(), False)):
        with ProgressLine(is_shown=is_shown, file=file) as progress:
            progress.show("one")
        assert file.getvalue() == ""
