"""message_as_written: an error's message with the names in which the user wrote the settings."""

import argparse
import re
from collections.abc import Mapping

from chairlift.cli.settings.resolve_settings import FILE, FLAG, resolve
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.errors import ChairliftError


def message_as_written(error: ChairliftError, arguments: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return an error's message with the setting's name as the user wrote it.

    That is the flag, the variable, or the key with its line.
    """
    resolved = _resolve_named(error.details, arguments, environ)
    if resolved is None:
        return error.message
    setting, source, origin = resolved
    written = {setting.name: setting.dest if source == FILE else origin}
    if setting.is_positional:
        written = {}
    elif source == FLAG:
        aliases = getattr(arguments, "written_flags", {})
        written |= {
            each.name: aliases.get(each.dest, each.flag) for each in arguments.parser.settings if "_" in each.name
        }
    message = error.message
    for name, replacement in written.items():
        # A name without an underscore is a word of plain English, too: only the subject of the sentence is the setting.
        before = r"(?<![\w-])" if "_" in name else r"(?:^|(?<=^unknown ))"
        message = re.sub(rf"{before}{name}(?![\w-])", replacement, message, count=0 if "_" in name else 1)
    return message if source == FLAG or origin in message else f"{message} ({origin})"


def _resolve_named(
    details: Mapping[str, object], arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Setting, str, str] | None:
    """Return the setting that an error names, with its source and origin.

    Returns None for a setting that is not given.
    """
    option = str(details.get("option") or details.get("param")).partition("[")[0]
    setting = next((each for each in arguments.parser.settings if each.name == option), None)
    if setting is None:
        return None
    try:
        resolved = resolve(setting, arguments, environ)
    except argparse.ArgumentTypeError:
        return None
    return None if resolved is None else (setting, resolved.source, resolved.origin)
