"""Rereading: what a server does with its file of settings when it is told to read it again."""

import argparse
import copy
import logging
from collections.abc import Mapping
from pathlib import Path

from chairlift.cli.commands.config_validate import invalid_values
from chairlift.cli.console import log_config
from chairlift.cli.server_options import server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile
from chairlift.cli.settings.sources import read_file
from chairlift.core.errors import ConfigError
from chairlift.server.server_process import ReloadedSettings

log = logging.getLogger(__name__)

FIXED = tuple(
    setting
    for group in ((settings.MODEL,), settings.SERVER, settings.SERVE_SETTINGS, settings.LOGGING)
    for setting in group
    if not setting.is_reloadable
)
"""What holds from a server's start to its end."""


class SettingsReloader:
    """Reads the file that a server was started with again; flags and the environment win over it, as they did then."""

    def __init__(self, arguments: argparse.Namespace, environ: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._arguments = arguments
        self._environ = environ
        self._names = names
        self._before: ConfigFile = arguments.file

    def __call__(self) -> ReloadedSettings:
        """Return what holds now. What changed and cannot be taken over is logged. Raises ConfigError."""
        check_is_file(self._before.path, settings.CONFIG.name)
        file = read_file(self._before.path)
        if self._before.values and not file.values:
            raise ConfigError(f"{file.path} is empty now, and was not before", option=settings.CONFIG.name)
        for problem in invalid_values(file):
            raise ConfigError(f"{file.path} line {problem.line}: {problem.said}", option=settings.CONFIG.name)
        arguments, environ = copy.copy(self._arguments), self._environ
        arguments.file = file
        try:
            door, logged = (settings.given(group, arguments, environ) for group in (settings.SERVER, settings.LOGGING))
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error), option=settings.CONFIG.name) from None
        renewed = ReloadedSettings(
            config=server_config(self._names, door),
            log=log_config(logged, verbose=arguments.verbose, quiet=arguments.quiet),
        )
        changed = [setting.dest for setting in FIXED if _value(file, setting) != _value(self._before, setting)]
        if changed:
            log.warning("%s: what changed of %s holds from the next start", file.path, ", ".join(changed))
        return renewed


def check_is_file(path: str | Path, option: str) -> None:
    """Raise ConfigError for what can be read only once, as a pipe can: whoever reads it again would wait for ever."""
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError(f"{path} is no file, and so cannot be read again", option=option)


def _value(file: ConfigFile, setting: settings.Setting) -> object:
    read = file.read(setting)
    return None if read is None else read[0]
