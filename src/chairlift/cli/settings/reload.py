"""SettingsReloader: reads a running server's settings file again."""

import argparse
import copy
import logging
from collections.abc import Mapping
from pathlib import Path

from chairlift.cli.commands.config_validate import invalid_values
from chairlift.cli.console import log_config
from chairlift.cli.server_options import check_queue_size, engine_queue_size, server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile
from chairlift.cli.settings.declaration import Setting
from chairlift.cli.settings.sources import read_file
from chairlift.core.errors import ConfigError
from chairlift.server.server_process import ReloadedSettings

log = logging.getLogger(__name__)

FIXED_SETTINGS = tuple(
    setting
    for group in ((settings.MODEL,), settings.SERVER, settings.SERVE_SETTINGS, settings.LOGGING)
    for setting in group
    if not setting.is_reloadable
)
"""Settings whose new values apply only at the next start."""


class SettingsReloader:
    """Reads the settings file again; the flags and variables of the start still override it."""

    def __init__(
        self, arguments: argparse.Namespace, environ: Mapping[str, str], names: tuple[str, ...], max_queue_size: int
    ) -> None:
        """Read with the arguments of the start; `max_queue_size` is that of the running engine, in sequences."""
        self._max_queue_size = max_queue_size
        self._arguments = arguments
        self._environ = environ
        self._names = names
        self._initial_file: ConfigFile = arguments.settings_file

    def __call__(self) -> ReloadedSettings:
        """Return the new values, and log a warning about changes that need a restart.

        Raises ConfigError for a file with any problem.
        """
        check_is_file(self._initial_file.path, settings.CONFIG.name)
        file = read_file(self._initial_file.path)
        if self._initial_file.values and not file.values:
            raise ConfigError(
                f"{file.path} has no settings any more, so it is not applied", option=settings.CONFIG.name
            )
        for problem in invalid_values(file):
            raise ConfigError(file.format_problem(problem), option=settings.CONFIG.name)
        arguments, environ = copy.copy(self._arguments), self._environ
        arguments.settings_file = file
        try:
            server_values, engine_values, logging_values = (
                settings.resolve_group(group, arguments, environ)
                for group in (settings.SERVER, settings.SERVE_SETTINGS, settings.LOGGING)
            )
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error), option=settings.CONFIG.name) from None
        config = server_config(self._names, server_values)
        engine_queue_size(server_values, engine_values)  # the next start would fail
        check_queue_size(self._max_queue_size, config.admission.max_waiting_requests)
        reloaded = ReloadedSettings(
            config=config,
            log=log_config(logging_values, verbose=arguments.verbose, quiet=arguments.quiet),
        )
        changed = [
            setting.dest for setting in FIXED_SETTINGS if _value(file, setting) != _value(self._initial_file, setting)
        ]
        if changed:
            log.warning("%s: the new values of %s apply only after a restart", file.path, ", ".join(changed))
        return reloaded


def check_is_file(path: str | Path, option: str) -> None:
    """Raise ConfigError for a path that exists and is no regular file.

    A second read of a pipe would block.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError(f"{path} is not a regular file, so it cannot be read again", option=option)


def _value(file: ConfigFile, setting: Setting) -> object:
    read = file.read(setting)
    return None if read is None else read[0]
