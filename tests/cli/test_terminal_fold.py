"""fold_line: rows continue in their last column, sentences are indented, words stay whole; a file has whole lines."""

import fcntl
import io
import os
import struct
import termios

import pytest

from chairlift.cli.terminal_fold import fold_for, fold_line, obeys_sequences, terminal_columns
from support_cli import Terminal
from support_shares import for_each


@for_each(("line", "folded"), [
    ("short", ["short"]),
    ("a sentence that is longer than the forty columns", ["a sentence that is longer than the forty", "  columns"]),
    ("    -> " + "word " * 8, ["    -> word word word word word word", "      word word"]),
    ("  name      the value of a row that is too long",
     ["  name      the value of a row that is", " " * 12 + "too long"]),
    ("  name      value       the source of a row that is long",
     ["  name      value       the source of a", " " * 12 + "row that is long"]),
    ("x " + "y" * 50, ["x", "  " + "y" * 50]),
])  # fmt: skip
def test_a_line_is_broken_between_words(line: str, folded: list[str]) -> None:
    assert fold_line(line, 40).split("\n") == folded


def test_only_a_terminal_has_folded_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert fold_for(io.StringIO(), "one two three four") == "one two three four"
    assert terminal_columns(io.StringIO()) is None and terminal_columns(Terminal()) == 10
    assert fold_for(Terminal(), "one two three four\nfive") == "one two\n  three\n  four\nfive"
    assert fold_for(Terminal(), "a\x1b[2J") == "a\ufffd[2J" and fold_for(io.StringIO(), "a\x1b") == "a\x1b"


def test_the_width_is_that_of_the_file_itself_and_a_dumb_terminal_obeys_no_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, device = os.openpty()
    with os.fdopen(master, "rb"), os.fdopen(device, "w") as file:
        for columns, environment, expected in ((43, "", 43), (43, "70", 70), (43, "x", 43), (0, "", 80)):
            fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            monkeypatch.setenv("COLUMNS", environment)
            assert terminal_columns(file) == expected
        for name, obeys in (("xterm", True), ("dumb", False), ("", False)):
            monkeypatch.setenv("TERM", name)
            assert obeys_sequences(file) == obeys and not obeys_sequences(io.StringIO())
