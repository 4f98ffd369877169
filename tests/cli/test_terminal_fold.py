"""fold_line: rows continue in their last column, sentences are indented, words stay whole; a file has whole lines."""

import io

import pytest

from chairlift.cli.terminal_fold import fold_for, fold_line, terminal_columns
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
