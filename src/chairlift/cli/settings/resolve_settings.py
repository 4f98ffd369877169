"""resolve, resolve_group: find the values of settings in flags, environment variables and the file.

A flag overrides the environment, the environment the file, and the file the default.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.cli.settings.setting_declaration import Setting


class SettingsFile(Protocol):
    """A settings file, as `resolve` reads it."""

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        """Return a setting's value and location ("serve.yaml line 3"), or None without its key.

        Raises ArgumentTypeError with the location for a value that cannot be parsed.
        """
        ...


FLAG, ENVIRONMENT, FILE = "flag", "environment", "file"


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """The value of a setting that a flag, a variable or a settings file gives.

    Attributes:
        value: the parsed value.
        source: FLAG, ENVIRONMENT or FILE.
        origin: the flag, the variable, or the file and line.
    """

    value: Any
    source: str
    origin: str


def resolve(setting: Setting, arguments: argparse.Namespace, environ: Mapping[str, str]) -> ResolvedSetting | None:
    """Return a setting's value from the flag, the variable or the file, or None without one.

    `arguments.settings_file` is a SettingsFile, or None without one.
    Raises ArgumentTypeError for a variable or a line of the file that cannot be parsed.
    """
    if (value := getattr(arguments, setting.dest, None)) is not None:
        written = getattr(arguments, "written_flags", {})  # an alias instead of the setting's own flag
        return ResolvedSetting(value, FLAG, written.get(setting.dest, setting.flag))
    if text := environ.get(setting.variable, ""):
        return ResolvedSetting(setting.parse_variable(text), ENVIRONMENT, setting.variable)
    file: SettingsFile | None = getattr(arguments, "settings_file", None)
    read = None if file is None else file.read(setting)
    return None if read is None else ResolvedSetting(read[0], FILE, read[1])


def resolve_group(
    group: Sequence[Setting], arguments: argparse.Namespace, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of a group by name, without settings that are not given.

    Raises as `resolve` does.
    """
    resolved = ((setting.name, resolve(setting, arguments, environ)) for setting in group)
    return {name: each.value for name, each in resolved if each is not None}


def process_environment() -> Mapping[str, str]:
    """Return this process's environment."""
    return os.environ
