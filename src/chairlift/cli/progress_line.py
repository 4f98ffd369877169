"""ProgressLine: one line on a terminal that is replaced while a command works, and erased at its end."""

import sys
from types import TracebackType
from typing import Self, TextIO

from chairlift.cli.terminal_fold import obeys_sequences, terminal_columns
from chairlift.cli.text_width import cut

ERASED = "\r\x1b[K"


class ProgressLine:
    """Context that shows what a command does now; silent where no terminal can erase it, or not `is_shown`."""

    def __init__(self, *, is_shown: bool = True, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._is_shown = is_shown and obeys_sequences(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def show(self, text: str) -> None:
        """Replace the line; a text that is too long for the terminal is cut."""
        self._write(cut(text, (terminal_columns(self._file) or 0) - 1))

    def _write(self, text: str) -> None:
        if self._is_shown:
            self._file.write(ERASED + text)
            self._file.flush()
