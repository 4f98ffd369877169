"""HelpFormatter: lays out --help for the width of the terminal, at most 120 columns."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator

MIN_WIDTH, MAX_WIDTH = 40, 120
NARROW_WIDTH = 100
"""Below this width the column of flags is narrower, so that the texts beside it have most of the line."""

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_COLUMNS = re.compile(r"^\s+\S+(?: \S+)*\s{2,}(?=\S)")
"""The first column of a line with two columns, which are at least two spaces apart."""

_GROUP = r"\[[^]]*\]"
"""An option of a usage line."""

_QUOTED = r"\"[^\"]*\"|'[^']*'"
_WORDS = rf"chairlift(?: [a-z][a-z-]*)+|--[\w-]+ (?:{_QUOTED}|[^\s-]\S*)|{_QUOTED}"
"""What stays on a line of an example: a command with its name, a flag with its value, a quoted text."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that fills paragraphs and keeps indented lines, such as examples, as they are."""

    def __init__(self, prog: str) -> None:
        width = max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
        super().__init__(prog, max_help_position=26 if width < NARROW_WIDTH else 34, width=width)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument, and count the indent of subcommands in the column width.

        Python 3.11 leaves the indent out.
        """
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment

    def _format_usage(self, *arguments: object) -> str:
        """Break a line of the usage between two options, never within [--port N]."""
        usage: str = super()._format_usage(*arguments)  # type: ignore[arg-type]
        return "\n".join(_fold(line, self._width, " " * 10, _GROUP) for line in usage.split("\n"))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in _fill_paragraphs(text, width - len(indent)))


def _fill_paragraphs(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text that is filled to a width; an indented line stays one, and is folded if too long."""
    for is_indented, block in _blocks(text):
        if not is_indented:
            yield from textwrap.wrap(block, width, break_on_hyphens=False, break_long_words=False) or [""]
        elif columns := _COLUMNS.match(block):
            yield from _fold(block, width, " " * columns.end()).split("\n")
        else:
            yield from _fold(block, width - 2, " " * 6, _WORDS).replace("\n", " \\\n").split("\n")


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Yield paragraphs as one line each, and indented lines and empty lines as they are, with True if indented."""
    paragraph: list[str] = []
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        if paragraph:
            yield False, " ".join(paragraph)
            paragraph = []
        yield line.startswith(" "), line
    if paragraph:
        yield False, " ".join(paragraph)


def _fold(line: str, width: int, indent: str, unbroken: str = "$") -> str:
    """Fold a line that is too long at spaces, but not within text that the pattern `unbroken` matches."""
    if len(line) <= width:
        return line
    start = len(line) - len(line.lstrip())
    held = re.sub(unbroken, lambda match: match[0].replace(" ", _NO_BREAK_SPACE), line[start:])
    head = _COLUMNS.match(line)
    first = line[: head.end()] if head else line[:start]
    lines = textwrap.wrap(
        held[len(first) - start :], width, initial_indent=first, subsequent_indent=indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return "\n".join(lines).replace(_NO_BREAK_SPACE, " ")
