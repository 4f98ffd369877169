"""Console, ServiceConsole: write messages for people to standard error; also the setup of the log."""

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import resolve_group

if TYPE_CHECKING:
    from chairlift.observability.logging import LogConfig


class Console:
    """Writes messages for people, except in quiet mode. Results are never written here."""

    def __init__(self, *, quiet: bool = False, file: TextIO | None = None) -> None:
        self.quiet = quiet
        self._file = file or sys.stderr

    def shows_progress_bars(self, output_files: Sequence[TextIO]) -> bool:
        """Return whether progress bars are visible here and no output file is a terminal."""
        return not self.quiet and self._file.isatty() and not any(file.isatty() for file in output_files)

    def print_line(self, sentence: str) -> None:
        """Write a line, except in quiet mode."""
        if not self.quiet:
            self.print_error(sentence)

    def print_error(self, sentence: str) -> None:
        """Write a line about an error, also in quiet mode."""
        print(sentence, file=self._file, flush=True)

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
            self._lines.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))

    def close(self, code: int) -> None:
        """Write what is left; exit with this code at once if that is stuck, which would block Python's normal exit."""
        for writer in (self._lines, self._logs):
            writer.close()
        if self._lines.is_stuck or self._logs.is_stuck:
            os._exit(code)


def configure_logging(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Log to standard error and to --log-file.

    -v logs all levels; -q limits standard error to errors.

    Raises:
        ConfigError: the log file cannot be written.
        ArgumentTypeError: an environment variable or a line of the settings file cannot be parsed.
    """
    from chairlift.core.errors import ConfigError
    from chairlift.observability.logging import configure

    values = resolve_group(settings.LOGGING, arguments, environ)
    config = log_config(values, verbose=arguments.verbose, quiet=arguments.quiet)
    try:
        configure(config, sys.stderr)
    except OSError as error:
        raise ConfigError(f"cannot write {config.file}: {error.strerror or error}", option="log_file") from None


def log_config(values: Mapping[str, Any], *, verbose: bool = False, quiet: bool = False) -> "LogConfig":
    """Return the log config of logging settings, -v and -q. Raises ConfigError."""
    from chairlift.core.errors import ConfigError
    from chairlift.observability.logging import LEVELS, LogConfig

    file = values.get("log_file", "")
    level = LEVELS[values.get("log_level", "debug" if verbose else "warning")]
    stream_level = LEVELS["error"] if quiet else level
    names = {"log_format": "form", "log_file_size": "max_bytes", "log_backups": "backups"}
    try:
        return LogConfig(
            level=level if file else stream_level, stream_level=stream_level, file=file,
            detailed=verbose or "log_level" in values,
            **{field: values[name] for name, field in names.items() if name in values},
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error), option="log_backups") from None
