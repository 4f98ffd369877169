"""configure_logging, log_config: set up the log of a command from its options and settings."""

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import resolve_group

if TYPE_CHECKING:
    from chairlift.observability.logging import LogConfig


def configure_logging(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Log to standard error and to --log-file.

    -v logs all levels; -q limits standard error to errors.

    Raises:
        ConfigError: the log file cannot be written.
        ArgumentTypeError: an environment variable or a line of the settings file cannot be parsed.
    """
    from chairlift.core.errors import ConfigError
    from chairlift.core.file_writes import write_error_reason
    from chairlift.observability.logging import configure

    values = resolve_group(settings.LOGGING, arguments, environ)
    config = log_config(values, verbose=arguments.verbose, quiet=arguments.quiet)
    try:
        configure(config, sys.stderr)
    except OSError as error:
        reason = write_error_reason(error, config.file)
        raise ConfigError(f"cannot write {config.file}: {reason}", option="log_file") from None


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
