"""fold_line, fold_for, print_folded: break lines for people between words where a terminal is too narrow for them."""

import os
import re
import sys
import textwrap
from contextlib import suppress
from typing import TextIO

from chairlift.cli.escape_control_chars import escape_control_chars

MIN_COLUMN_WIDTH = 24
"""Least columns for the text of a row's last column; with fewer, the text begins below an earlier column."""

SENTENCE_INDENT = 2
DEFAULT_COLUMNS = 80
"""Width of a terminal that does not say it."""

_GAPS = re.compile(r"(?<=\S)\s{2,}(?=\S)")


def fold_line(line: str, columns: int) -> str:
    """Return a line that is broken between words, so that its parts fit if words do.

    The rest of a row such as "  name    value" continues in the last column that has room, that of a sentence is
    indented.
    """
    if len(line) <= columns:
        return line
    start = len(line) - len(line.lstrip())
    ends = [gap.end() for gap in _GAPS.finditer(line) if gap.end() <= columns - MIN_COLUMN_WIDTH]
    column = max(ends, default=0)
    indent = column or start + SENTENCE_INDENT
    parts = textwrap.wrap(
        line[column:], columns, initial_indent=line[:column], subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip
    return "\n".join(parts)


def fold_for(file: TextIO, text: str) -> str:
    """Return a text as it is, or with folded lines and without control characters if the file is a terminal."""
    columns, shown = terminal_columns(file), escape_control_chars(text, file)
    return text if columns is None else "\n".join(fold_line(line, columns) for line in shown.split("\n"))


def print_folded(text: str) -> None:
    """Print a text on the standard output, with folded lines if that is a terminal."""
    print(fold_for(sys.stdout, text))


def terminal_columns(file: TextIO) -> int | None:
    """Return the width of the terminal that a file is, or that of the variable COLUMNS; None for another file."""
    if not file.isatty():
        return None
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
        return int(columns)
    with suppress(OSError):
        return os.get_terminal_size(file.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def obeys_sequences(file: TextIO) -> bool:
    """Return whether a file is a terminal that can erase lines and show colours."""
    return file.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
