"""ConfigFile: the settings that a YAML file makes, with their lines, and everything that is wrong with them.

A file is one mapping, without sections: keys are flags without their dashes. What stands behind a key is read as the
text of the flag would be, so that a revision may be 0123, and "no" a name. Lists are for settings that may be given
several times or take several values, mappings for those that take pairs.
"""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.settings import Setting
from chairlift.cli.settings.yaml_nodes import Key, Problem, Unreadable, Value, cut, read_keys
from chairlift.core.errors import ConfigError

MAX_SAID = 400
KEYS = frozenset(name.removeprefix(settings.PREFIX).lower() for name in settings.SECRETS)


class ConfigFile:
    """Settings that a file makes.

    Attributes:
        path: as it was given.
        values: by key, those that are not null.
        problems: in the order of their lines.
    """

    def __init__(self, path: str, values: Mapping[str, Value], problems: Sequence[Problem]) -> None:
        self.path = path
        self.values = values
        self.problems = sorted(problems, key=lambda problem: problem.line)

    def place(self, line: int) -> str:
        """Name a line the way people do."""
        return f"{self.path} line {line}" if line else self.path

    def shown(self, problem: Problem) -> str:
        """Say what is wrong, and where."""
        return f"{self.place(problem.line)}: {problem.said}"

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        """Return a setting's value and its place, None where it is not there. Raises ArgumentTypeError."""
        value = self.values.get(setting.dest)
        if value is None:
            return None
        try:
            return _read(setting, value), self.place(value.line)
        except Unreadable as error:
            raise argparse.ArgumentTypeError(self.shown(error.problem)) from None

    def check(self) -> "ConfigFile":
        """Return itself. Raises ConfigError with the first problem, and how many more there are."""
        if not self.problems:
            return self
        first, *rest = self.problems
        more = f" (and {len(rest)} more: chairlift config validate {self.path})" if rest else ""
        raise ConfigError(self.shown(first) + more, option=settings.CONFIG.name)


def read_config(path: str) -> ConfigFile:
    """Read a file; what is wrong with it, or with being a file, is among its problems."""
    try:
        return _understood(path, read_keys(path))
    except Unreadable as error:
        return ConfigFile(path, {}, [error.problem])


def _understood(path: str, keys: Sequence[Key]) -> ConfigFile:
    """Take the keys that there are, and say what is wrong with each of the others."""
    known: dict[str, list[Setting]] = {}
    for _, group in settings.GROUPS:
        for setting in group:
            known.setdefault(setting.dest, []).append(setting)
    values, problems, seen = dict[str, Value](), list[Problem](), dict[str, int]()
    for key, line, value in keys:
        name = key.replace("-", "_")
        if name in seen:
            problems.append(Problem(line, f"{cut(key)!r} is already in line {seen[name]}; one of them has to go"))
        elif isinstance(value, Unreadable):
            problems.append(value.problem)
        elif name not in known:
            problems.append(Problem(line, _unknown(key, value, known)))
        elif (refusal := _refusal(known[name], value)) is not None:
            problems.append(refusal)
        elif not value.is_null:
            values[name] = value
        seen.setdefault(name, line)
    return ConfigFile(path, values, problems)


def _unknown(key: str, value: Value, known: Mapping[str, Sequence[Setting]]) -> str:
    name = key.replace("-", "_").lower().removeprefix(settings.PREFIX.lower())
    if name in KEYS:
        variable = settings.PREFIX + name.upper()
        return f"{key!r}: no key belongs in here; give key_file, or {variable} in the environment"
    if value.pairs is not None and name in {title for title, _ in settings.GROUPS}:
        return f"there are no sections: what stands under {key!r} goes to the margin"
    owned = {setting.name: dest for dest, each in known.items() for setting in each}  # bad_words: bad_word
    near = difflib.get_close_matches(name, owned.keys() | known.keys(), n=1)
    if not near:
        return f"unknown key {cut(key)!r}; `chairlift config show` lists what there is"
    meant = near[0] if near[0] in known else owned[near[0]]
    return f"unknown key {cut(key)!r}, did you mean {meant!r}?"


def _refusal(declared: Sequence[Setting], value: Value) -> Problem | None:
    """Say what is wrong with a value; None when at least one of the settings of its name takes it."""
    refusal = None
    for setting in declared if not value.is_null else ():
        try:
            _read(setting, value)
            return None
        except Unreadable as error:
            refusal = error.problem
    return refusal


def _read(setting: Setting, value: Value) -> Any:
    """Turn what stands there into a setting's value. Raises Unreadable."""
    if not setting.many:
        return _one(setting, value)
    return [_one(setting, item) for item in ([value] if value.items is None else value.items)]


def _one(setting: Setting, value: Value) -> Any:
    text = _as_text(setting.kind, value)
    if text is None:
        what = "a list of " * setting.many + value_parsers.said(setting.kind)
        raise Unreadable(value.line, f"{setting.dest} must be {what}, got {value.shown()}")
    try:
        return setting.kind(text)
    except argparse.ArgumentTypeError as error:
        raise Unreadable(value.line, f"{setting.dest} {cut(str(error), MAX_SAID)}") from None


def _as_text(kind: value_parsers.Kind, value: Value) -> str | None:
    """Write a value as the flag of this kind takes it; None for one that no flag could have."""
    if value.items is not None:
        return _joined(value.items, ",") if kind in value_parsers.LISTS else None
    if value.pairs is None:
        return value.text
    if kind is value_parsers.structure and len(value.pairs) == 1:
        return _structure(*value.pairs[0])
    if kind not in value_parsers.PAIRS or any(mark in name for name, _ in value.pairs for mark in ",="):
        return None
    texts = [_joined([inner], ",") for _, inner in value.pairs]
    if None in texts or not texts:
        return None
    return ",".join(f"{name}={text}" for (name, _), text in zip(value.pairs, texts, strict=True))


def _structure(name: str, value: Value) -> str | None:
    if value.items is not None:
        joined = _joined(value.items, "|")
        return None if joined is None else f"{name}={joined}"
    return name if name == "json_object" and value.text == "true" else f"{name}={value.text}" if value.text else None


def _joined(values: Sequence[Value], separator: str) -> str | None:
    """Write texts side by side; None when there is none, or when one is no text or has the separator in it."""
    texts = [value.text for value in values if value.text is not None and separator not in value.text]
    return separator.join(texts) if texts and len(texts) == len(values) else None
