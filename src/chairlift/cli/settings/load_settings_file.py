"""load_settings_file, read_file: read the settings file that a command names."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import resolve
from chairlift.core.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.cli.settings.config_file import ConfigFile


def load_settings_file(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Read the command's settings file, and resolve its model.

    Sets `arguments.settings_file`, None without a file, and `arguments.model_setting`, None without a model.
    Raises ConfigError for a file with any problem, even in a setting that this command does not read.
    """
    declared = arguments.parser.settings
    arguments.settings_file = arguments.model_setting = None
    if settings.CONFIG in declared and (config := resolve(settings.CONFIG, arguments, environ)) is not None:
        arguments.settings_file = read_file(config.value)
    is_remote = getattr(arguments, "url", None) is not None  # the names of a server's models are not local models
    if settings.MODEL in declared and not is_remote:
        arguments.model_setting = resolve(settings.MODEL, arguments, environ)
        arguments.model = None if arguments.model_setting is None else arguments.model_setting.value


def read_file(path: str) -> "ConfigFile":
    """Read a settings file. Raises ConfigError."""
    from chairlift.cli.settings.config_file import read_config  # imports a YAML parser

    return read_config(path).check()


def check_is_file(path: str | Path, option: str) -> None:
    """Raise ConfigError for a path that exists and is not a regular file.

    A second read of a pipe would block.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError(f"{path} is not a regular file, so it cannot be read again", option=option)
