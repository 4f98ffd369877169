"""Console: quiet when asked, bars only where somebody sees them, and text that cannot steer a terminal."""

import io
import logging

import pytest

from chairlift.cli.console import Console, configure_logging, tamed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sentences_and_rows_go_to_the_file_unless_quiet() -> None:
    file = io.StringIO()
    Console(file=file).say("hello")
    Console(file=file).row("name", "value")
    Console(quiet=True, file=file).say("hush")
    assert file.getvalue().split() == ["hello", "name", "value"]


def test_a_bar_is_for_a_terminal_that_shows_nothing_else() -> None:
    assert Console(file=Terminal()).shows_bars([io.StringIO()])
    assert not Console(file=Terminal()).shows_bars([Terminal()])
    assert not Console(file=io.StringIO()).shows_bars([])
    assert not Console(quiet=True, file=Terminal()).shows_bars([])


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = "a\x1b[2J\x07\x9b\r\tb\n中"
    assert tamed(text, Terminal()) == "a\ufffd[2J\ufffd\ufffd\ufffd\tb\n中"
    assert tamed(text, io.StringIO()) == text


@pytest.mark.parametrize(
    ("verbose", "quiet", "seen"),
    [(False, False, ["warning"]), (False, True, []), (True, False, ["debug", "info", "warning"])],
)
def test_the_log_says_as_much_as_was_asked_for(
    capsys: pytest.CaptureFixture[str], verbose: bool, quiet: bool, seen: list[str]
) -> None:
    configure_logging(verbose=False, quiet=False)
    configure_logging(verbose=verbose, quiet=quiet)
    log = logging.getLogger("chairlift.somewhere")
    for level in ("debug", "info", "warning"):
        getattr(log, level)("this is %s", level)
    said = capsys.readouterr().err
    assert [line.rpartition(" ")[2] for line in said.splitlines()] == seen
