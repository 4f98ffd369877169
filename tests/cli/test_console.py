"""Console: quiet mode, progress bars, text without control characters, and the log."""

import io
import logging

import pytest

from chairlift.cli.console import Console, ServiceConsole
from support_cli import Terminal


def test_sentences_and_rows_go_to_the_file_unless_quiet() -> None:
    file = io.StringIO()
    Console(file=file).print_line("hello")
    Console(file=file).print_row("name", "value")
    Console(quiet=True, file=file).print_line("hush")
    assert file.getvalue().split() == ["hello", "name", "value"]


def test_a_terminal_has_lines_that_fit_but_for_those_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    terminal = Terminal()
    console = Console(file=terminal)
    console.print_row("name", "value " * 8)
    console.print_exactly("copy " * 20)
    Console(quiet=True, file=terminal).print_exactly("hush")
    row, rest, copied = terminal.getvalue().splitlines()
    assert row.startswith("  name   ") and rest == " " * 29 + "value value" and copied == "copy " * 20


def test_a_progress_bar_needs_a_terminal_without_other_output() -> None:
    assert Console(file=Terminal()).shows_progress_bars([io.StringIO()])
    assert not Console(file=Terminal()).shows_progress_bars([Terminal()])
    assert not Console(file=io.StringIO()).shows_progress_bars([])
    assert not Console(quiet=True, file=Terminal()).shows_progress_bars([])


def test_a_service_writes_its_lines_except_in_quiet_mode(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("chairlift"), "handlers", [logging.NullHandler()])
    for quiet in (False, True):
        console = ServiceConsole(quiet=quiet)
        console.print_line(f"quiet is {quiet}")
        console.close(0)
    assert capfd.readouterr().err == "quiet is False\n"
