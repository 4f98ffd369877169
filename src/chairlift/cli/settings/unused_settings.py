"""warn_unused_settings: warns about environment variables and keys of the file without effect."""

import argparse
import difflib
import logging
from collections.abc import Iterator, Mapping

from chairlift.cli.settings import settings
from chairlift.cli.settings.setting_declaration import PREFIX

log = logging.getLogger(__name__)

READ_ELSEWHERE = ("CHAIRLIFT_CPU_KERNELS", "CHAIRLIFT_CPU_LIBRARY", "CHAIRLIFT_BUILD_KERNELS", "CHAIRLIFT_CACHE")
"""Variables that are no settings: kernels/cpu, the build and config/gguf_folder.py read them."""

SIMILARITY_CUTOFF = 0.75
"""Least similarity (0 to 1) of an unknown variable to a known one for a warning; Kubernetes sets some below it."""


def warn_unused_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Log a warning about flags without effect, misspelled variables and keys that this command does not read."""
    for note in getattr(arguments, "flag_notes", ()):
        log.warning("%s", note)
    for name, known_name in unknown_variables(environ):
        log.warning("the environment variable %s is unknown and has no effect; did you mean %s?", name, known_name)
    command = arguments.parser.prog.removeprefix("chairlift ")
    unused = unused_keys(arguments)
    if unused:
        log.warning("%s: `%s` does not read %s", arguments.settings_file.path, command, ", ".join(unused))


def unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each unknown variable that is similar to a known one, with the known name."""
    known = {setting.variable for _, group in settings.GROUPS for setting in group}
    known |= {settings.CONFIG.variable, *settings.SECRETS}
    names = [name.removeprefix(PREFIX) for name in sorted(known)]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in READ_ELSEWHERE:
            similar = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1, cutoff=SIMILARITY_CUTOFF)
            yield from ((name, PREFIX + match) for match in similar)


def unused_keys(arguments: argparse.Namespace) -> list[str]:
    """Return the file's keys that are not settings of the command.

    A command with logging settings only has none.
    """
    keys = {setting.dest for setting in arguments.parser.settings}
    has_logging_only = keys <= {setting.dest for setting in (*settings.LOGGING, settings.CONFIG)}
    if arguments.settings_file is None or has_logging_only:
        return []
    return [key for key in arguments.settings_file.values if key not in keys]
