"""Console, ServiceConsole: write messages for people to standard error."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from chairlift.cli.terminal_fold import fold_for


class Output(Protocol):
    """A stream or file that may be a terminal."""

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        ...


class Console:
    """Writes messages for people, except in quiet mode. Results are never written here."""

    def __init__(self, *, quiet: bool = False, file: TextIO | None = None) -> None:
        self.quiet = quiet
        self._file = file or sys.stderr

    def shows_progress_bars(self, output_files: Sequence[Output]) -> bool:
        """Return whether progress bars are visible here and no output file is a terminal."""
        return not self.quiet and self._file.isatty() and not any(file.isatty() for file in output_files)

    def print_line(self, sentence: str) -> None:
        """Write a line, except in quiet mode."""
        if not self.quiet:
            self.print_error(sentence)

    def print_error(self, sentence: str) -> None:
        """Write a line about an error, also in quiet mode; a terminal has it in lines that fit."""
        print(fold_for(self._file, sentence), file=self._file, flush=True)

    def print_exactly(self, line: str) -> None:
        """Write a line that is to be copied, and so stays one, except in quiet mode."""
        if not self.quiet:
            print(line, file=self._file, flush=True)

    def print_row(self, name: str, value: str) -> None:
        """Write one name and value of a list."""
        self.print_line(f"  {name:<26} {value}")


class ServiceConsole:
    """Writes the lines and the log of a service in threads: a blocked disk or pipe does not block the service."""

    def __init__(self, *, quiet: bool) -> None:
        """Start the threads; `close` ends them."""
        from chairlift.observability.logging import line_handler, use_background_writer

        self._quiet = quiet
        self._logs, self._lines = use_background_writer(), line_handler(sys.stderr)

    def print_line(self, line: str) -> None:
        """Write a line, except in quiet mode."""
        if not self._quiet:
            self._lines.handle(logging.makeLogRecord({"msg": fold_for(sys.stderr, line), "levelno": logging.INFO}))

    def close(self, code: int) -> None:
        """Write what is left; exit with this code at once if that is stuck, which would block Python's normal exit."""
        for writer in (self._lines, self._logs):
            writer.close()
        if self._lines.is_stuck or self._logs.is_stuck:
            os._exit(code)
