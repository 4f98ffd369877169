"""Console: what people see on standard error, and generated text on a terminal that it cannot take over."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from chairlift.cli.settings import settings

if TYPE_CHECKING:
    from chairlift.observability.logging import LogConfig

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
            self.complain(sentence)

    def complain(self, sentence: str) -> None:
        """Write a line of what went wrong, quiet or not."""
        print(sentence, file=self._file, flush=True)

    def row(self, name: str, value: str) -> None:
        """Write one fact of a list."""
        self.say(f"  {name:<26} {value}")


def escape_control_chars(text: str, file: TextIO) -> str:
    """Return text that is safe to print there: a model's output must not steer a terminal."""
    return text.translate(_TAMED) if file.isatty() else text


def tamed_line(text: str) -> str:
    """Return a line without control characters, whoever reads it."""
    return text.translate(_TAMED).replace("\n", " ")


def configure_logging(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Send Chairlift's log to standard error, and to --log-file; -v logs everything, -q quiets standard error alone.

    Raises ConfigError for a file that cannot be written, ArgumentTypeError for what the environment says.
    """
    from chairlift.core.errors import ConfigError
    from chairlift.observability.logging import configure

    asked = settings.given(settings.LOGGING, arguments, environ)
    config = log_config(asked, verbose=arguments.verbose, quiet=arguments.quiet)
    try:
        configure(config, sys.stderr)
    except OSError as error:
        raise ConfigError(f"cannot write {config.file}: {error.strerror or error}", option="log_file") from None


def log_config(asked: Mapping[str, Any], *, verbose: bool = False, quiet: bool = False) -> "LogConfig":
    """Return what settings, -v and -q ask of the log. Raises ConfigError."""
    from chairlift.core.errors import ConfigError
    from chairlift.observability.logging import LEVELS, LogConfig

    file = asked.get("log_file", "")
    level = LEVELS[asked.get("log_level", "debug" if verbose else "warning")]
    stream_level = LEVELS["error"] if quiet else level
    names = {"log_format": "form", "log_file_size": "max_bytes", "log_backups": "backups"}
    try:
        return LogConfig(
            level=level if file else stream_level, stream_level=stream_level, file=file,
            detailed=verbose or "log_level" in asked,
            **{field: asked[name] for name, field in names.items() if name in asked},
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error), option="log_backups") from None
