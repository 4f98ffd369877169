"""`chairlift config show`: every setting, with its value and where that comes from."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.cli.console import tamed_line
from chairlift.cli.settings import settings
from chairlift.cli.settings.settings import Setting

DEFAULT = "default"
MODEL = "model"
WHERE = {settings.FLAG: "flag ", settings.ENVIRONMENT: "environment ", settings.FILE: ""}


@dataclass(frozen=True, slots=True)
class Row:
    """One setting.

    Attributes:
        setting: what is set.
        value: what holds; None where nothing does, or where words say it.
        source: FLAG, ENVIRONMENT, FILE or DEFAULT; MODEL for a default that the model decides.
        where: the flag, the variable, or the file with its line; "" for a default.
    """

    setting: Setting
    value: Any
    source: str
    where: str = ""

    @property
    def shown(self) -> str:
        """The value for people."""
        if self.value is None:
            return self.setting.default_text or "-"
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return WHERE.get(self.source, self.source) + self.where

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = {"value": self.value, "source": self.source, "where": self.where}
        return found | (
            {"otherwise": self.setting.default_text} if self.value is None and self.setting.default_text else {}
        )


def run(arguments: argparse.Namespace) -> int:
    """Print all of it; returns the exit code. Raises ConfigError, and ArgumentTypeError for what cannot be read."""
    environ = settings.environment()
    found = {
        title: [_row(setting, arguments, environ) for setting in _served(title, group)]
        for title, group in settings.GROUPS
    }
    secrets = {name: bool(environ.get(name)) for name in settings.SECRETS}
    path = None if arguments.file is None else arguments.file.path
    if arguments.json:
        shown = {title: {row.setting.dest: row.as_object() for row in rows} for title, rows in found.items()}
        print(json.dumps({"config": path, "settings": shown, "secrets": secrets}, ensure_ascii=False, indent=2))
    else:
        print("\n".join(map(tamed_line, _lines(found, secrets))))
    return 0


def _served(title: str, group: Sequence[Setting]) -> Sequence[Setting]:
    """Return the engine's settings with the defaults of a server."""
    return settings.SERVE_SETTINGS if title == "engine" else group


def _row(setting: Setting, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Row:
    found = arguments.named if setting is settings.MODEL else settings.find(setting, arguments, environ)
    if found is not None:
        return Row(setting, found.value, found.source, found.where)
    value = None if setting.default == "" else setting.default
    return Row(setting, value, MODEL if setting.default_text.startswith("the model's") else DEFAULT)


def _lines(found: Mapping[str, Sequence[Row]], secrets: Mapping[str, bool]) -> Iterator[str]:
    width = max(len(row.setting.dest) for rows in found.values() for row in rows)
    for title, rows in found.items():
        yield title
        for row in rows:
            yield f"  {row.setting.dest:<{width}}  {row.shown:<24}  {row.origin}"
    yield "keys"
    for name, is_set in secrets.items():
        yield f"  {name:<{width}}  {'set, and not shown' if is_set else '-':<24}  environment"
