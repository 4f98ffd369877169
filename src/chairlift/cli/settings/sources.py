"""Sources: what besides the command line makes settings, and what of that nobody reads."""

import argparse
import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from chairlift.cli.settings import settings

if TYPE_CHECKING:
    from chairlift.cli.settings.config_file import ConfigFile

log = logging.getLogger(__name__)

NEAR = 0.75
"""How alike an unknown variable is to a known one that it was meant to be; Kubernetes sets some that are not."""


def load_settings_file(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Read the file that a command was given into `arguments.file`, and take its model where none is named.

    `arguments.named` is who named the model. Raises ConfigError for a file with anything wrong in it, whether or not
    this command would have read that.
    """
    taken = arguments.parser.taken
    arguments.file = arguments.named = None
    if settings.CONFIG in taken and (config := settings.find(settings.CONFIG, arguments, environ)) is not None:
        arguments.file = read_file(config.value)
    is_elsewhere = getattr(arguments, "url", None) is not None  # a server's models have other names
    if settings.MODEL in taken and not is_elsewhere:
        arguments.named = settings.find(settings.MODEL, arguments, environ)
        arguments.model = None if arguments.named is None else arguments.named.value


def read_file(path: str) -> "ConfigFile":
    """Read a file of settings. Raises ConfigError."""
    from chairlift.cli.settings.config_file import read_config  # it needs a parser for YAML

    return read_config(path).check()


def warn_unread_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Log what somebody has set in vain: variables whose names are almost right, and settings of other commands."""
    for name, meant in unknown_variables(environ):
        log.warning("nothing reads %s of the environment; did you mean %s?", name, meant)
    command = arguments.parser.prog.removeprefix("chairlift ")
    idle = unread_keys(arguments)
    if idle:
        log.warning("%s: nothing of `%s` reads %s", arguments.file.path, command, ", ".join(idle))


def setting_origin(
    details: Mapping[str, object], arguments: argparse.Namespace, environ: Mapping[str, str]
) -> str | None:
    """Return the variable, or the line of the file, that made the setting which an error names; None for a flag."""
    option = details.get("option") or details.get("param")
    for setting in arguments.parser.taken:
        with suppress(argparse.ArgumentTypeError):
            found = settings.find(setting, arguments, environ) if setting.name == option else None
            if found is not None and found.source != settings.FLAG:
                return found.where
    return None


def unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield variables that nothing reads, each with the one that it is almost called like."""
    known = {setting.environment for _, group in settings.GROUPS for setting in group}
    known |= {settings.CONFIG.environment, *settings.SECRETS}
    names = [name.removeprefix(settings.PREFIX) for name in sorted(known)]
    for name in sorted(environ):
        if name.startswith(settings.PREFIX) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(settings.PREFIX), names, n=1, cutoff=NEAR)
            yield from ((name, settings.PREFIX + meant) for meant in near)


def unread_keys(arguments: argparse.Namespace) -> list[str]:
    """Return the keys of the file that the command has no setting for; none where it has settings of the log alone."""
    taken = {setting.dest for setting in arguments.parser.taken}
    logging_alone = taken <= {setting.dest for setting in (*settings.LOGGING, settings.CONFIG)}
    return [] if arguments.file is None or logging_alone else [key for key in arguments.file.values if key not in taken]
