"""Console: what people see on standard error, and generated text on a terminal that it cannot take over."""

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

# Control characters could move the cursor, ring, or set the title; newline and tab may pass.
_TAMED = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


class Console:
    """Writes sentences for people, unless they want quiet; results never come this way."""

    def __init__(self, *, quiet: bool = False, file: TextIO | None = None) -> None:
        self.quiet = quiet
        self._file = file or sys.stderr

    def shows_bars(self, beside: Sequence[TextIO]) -> bool:
        """Whether a progress bar would be seen here and not mix with what is written to those files on a terminal."""
        return not self.quiet and self._file.isatty() and not any(file.isatty() for file in beside)

    def say(self, sentence: str) -> None:
        """Write a line, unless quiet."""
        if not self.quiet:
            print(sentence, file=self._file, flush=True)

    def row(self, name: str, value: str) -> None:
        """Write one fact of a list."""
        self.say(f"  {name:<26} {value}")


def tamed(text: str, file: TextIO) -> str:
    """Return text that is safe to print there: a model's output must not steer a terminal."""
    return text.translate(_TAMED) if file.isatty() else text


def configure_logging(*, verbose: bool, quiet: bool) -> None:
    """Send Chairlift's log to standard error: warnings, with -v everything, with -q errors alone."""
    handler = logging.StreamHandler(sys.stderr)
    detailed = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(detailed if verbose else "chairlift: %(message)s"))
    log = logging.getLogger("chairlift")
    for old in log.handlers[:]:
        log.removeHandler(old)
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING)
