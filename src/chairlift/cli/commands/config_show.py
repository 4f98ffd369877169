"""`chairlift config show`: every setting with its value and its source."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import ENVIRONMENT, FILE, FLAG, process_environment, resolve
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.terminal_fold import print_folded

DEFAULT = "default"
MODEL = "model"
ORIGIN_PREFIXES = {FLAG: "flag ", ENVIRONMENT: "environment ", FILE: ""}


@dataclass(frozen=True, slots=True)
class Row:
    """The line of one setting.

    Attributes:
        setting: the setting.
        value: its value; None without one, or for a default that only words describe.
        source: FLAG, ENVIRONMENT, FILE or DEFAULT; MODEL for a default that comes from the model.
        location: the flag, the variable, or the file and line; "" for a default.
    """

    setting: Setting
    value: Any
    source: str
    location: str = ""

    @property
    def display_value(self) -> str:
        """The value, for people."""
        if self.value is None:
            return self.setting.default_text or "-"
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def origin(self) -> str:
        """The source and location, for people."""
        return ORIGIN_PREFIXES.get(self.source, self.source) + self.location

    def as_object(self) -> dict[str, Any]:
        """Return the JSON object of the row."""
        entry = {"value": self.value, "source": self.source, "where": self.location}
        return entry | (
            {"otherwise": self.setting.default_text} if self.value is None and self.setting.default_text else {}
        )


def run(arguments: argparse.Namespace) -> int:
    """Print all settings; returns the exit code.

    Raises ConfigError, and ArgumentTypeError for a value that cannot be parsed.
    """
    environ = process_environment()
    rows_by_group = {
        title: [_row(setting, arguments, environ) for setting in _server_group(title, group)]
        for title, group in settings.GROUPS
    }
    secrets = {name: bool(environ.get(name)) for name in settings.SECRETS}
    path = None if arguments.settings_file is None else arguments.settings_file.path
    if arguments.json:
        groups = {title: {row.setting.dest: row.as_object() for row in rows} for title, rows in rows_by_group.items()}
        print(json.dumps({"config": path, "settings": groups, "secrets": secrets}, ensure_ascii=False, indent=2))
    else:
        print_folded("\n".join(map(escape_line, _format_rows(rows_by_group, secrets))))
    return 0


def _server_group(title: str, group: Sequence[Setting]) -> Sequence[Setting]:
    """Return a group with the defaults of `serve`."""
    return settings.SERVE_SETTINGS if title == "engine" else group


def _row(setting: Setting, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Row:
    is_model = setting is settings.MODEL
    resolved = arguments.model_setting if is_model else resolve(setting, arguments, environ)
    if resolved is not None:
        return Row(setting, resolved.value, resolved.source, resolved.origin)
    value = None if setting.default == "" else setting.default
    return Row(setting, value, MODEL if setting.default_text.startswith("the model's") else DEFAULT)


def _format_rows(rows_by_group: Mapping[str, Sequence[Row]], secrets: Mapping[str, bool]) -> Iterator[str]:
    width = max(len(row.setting.dest) for rows in rows_by_group.values() for row in rows)
    for title, rows in rows_by_group.items():
        yield title
        for row in rows:
            yield f"  {row.setting.dest:<{width}}  {row.display_value:<24}  {row.origin}"
    yield "keys"
    for name, is_set in secrets.items():
        yield f"  {name:<{width}}  {'set, and not shown' if is_set else '-':<24}  environment"
