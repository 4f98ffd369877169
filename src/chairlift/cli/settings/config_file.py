"""ConfigFile: the settings of a YAML file with their lines, and every problem of the file.

A file is one mapping without sections, whose keys are flag names without the leading dashes. A value is parsed as the
text of its flag, so a revision may be 0123 and a name may be "no". A list is for a setting that is repeatable or takes
several values, a mapping for a setting that takes pairs.
"""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.foreign_flag_table import find_foreign_flag
from chairlift.cli.settings.setting_declaration import PREFIX, Setting
from chairlift.cli.settings.yaml_nodes import InvalidNode, Key, Problem, Value, read_keys, shorten
from chairlift.core.errors import ConfigError

MAX_MESSAGE_CHARS = 400
"""Longest message of a value parser that is passed on."""
SECRET_KEYS = frozenset(name.removeprefix(PREFIX).lower() for name in settings.SECRETS)
"""Keys that a settings file must not have."""


class ConfigFile:
    """The settings of one file.

    Attributes:
        path: path of the file as the user wrote it.
        values: values by key, without those that are null.
        problems: errors in the order of their lines.
    """

    def __init__(self, path: str, values: Mapping[str, Value], problems: Sequence[Problem]) -> None:
        self.path = path
        self.values = values
        self.problems = sorted(problems, key=lambda problem: problem.line)

    def location(self, line: int) -> str:
        """Return the location of a line, for people."""
        return f"{self.path} line {line}" if line else self.path

    def format_problem(self, problem: Problem) -> str:
        """Return a problem with its location as a sentence."""
        return f"{self.location(problem.line)}: {problem.message}"

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        """Return a setting's value and location, or None for a setting without a key.

        Raises ArgumentTypeError for a value that cannot be parsed.
        """
        value = self.values.get(setting.dest)
        if value is None:
            return None
        try:
            return _parse_value(setting, value), self.location(value.line)
        except InvalidNode as error:
            raise argparse.ArgumentTypeError(self.format_problem(error.problem)) from None

    def check(self) -> "ConfigFile":
        """Return this file.

        Raises ConfigError with the first problem and the number of further ones.
        """
        if not self.problems:
            return self
        first, *rest = self.problems
        more = f" (and {len(rest)} more; `chairlift config validate {self.path}` lists them)" if rest else ""
        raise ConfigError(self.format_problem(first) + more, option=settings.CONFIG.name)


def read_config(path: str) -> ConfigFile:
    """Read a settings file; a file that cannot be read is one with that problem."""
    try:
        return _parse_keys(path, read_keys(path))
    except InvalidNode as error:
        return ConfigFile(path, {}, [error.problem])


def _parse_keys(path: str, keys: Sequence[Key]) -> ConfigFile:
    """Sort keys into values of known settings and problems."""
    known: dict[str, list[Setting]] = {}
    for _, group in settings.GROUPS:
        for setting in group:
            known.setdefault(setting.dest, []).append(setting)
    values, problems, first_lines = dict[str, Value](), list[Problem](), dict[str, int]()
    for key, line, value in keys:
        name = key.replace("-", "_")
        if name in first_lines:
            message = f"the key {shorten(key)!r} is already in line {first_lines[name]}; remove one of them"
            problems.append(Problem(line, message))
        elif isinstance(value, InvalidNode):
            problems.append(value.problem)
        elif name not in known:
            problems.append(Problem(line, _unknown_key_message(key, value, known)))
        elif (problem := _find_problem(known[name], value)) is not None:
            problems.append(problem)
        elif not value.is_null:
            values[name] = value
        first_lines.setdefault(name, line)
    return ConfigFile(path, values, problems)


def _unknown_key_message(key: str, value: Value, known: Mapping[str, Sequence[Setting]]) -> str:
    name = key.replace("-", "_").lower().removeprefix(PREFIX.lower())
    if name in SECRET_KEYS:
        variable = PREFIX + name.upper()
        return f"{key!r} is a secret, which a settings file must not hold; set key_file, or the variable {variable}"
    if value.pairs is not None and name in {title for title, _ in settings.GROUPS}:
        return f"a settings file has no sections; move the keys under {key!r} to the top level"
    if (flag := find_foreign_flag(name)) is not None:
        systems, setting = ", ".join(flag.systems), flag.option.setting
        return f"unknown key {shorten(key)!r}, a flag of {systems}; the key here is {setting!r}"
    keys = {setting.name: key for key, group in known.items() for setting in group}  # bad_words: bad_word
    similar = difflib.get_close_matches(name, keys.keys() | known.keys(), n=1)
    if not similar:
        return f"unknown key {shorten(key)!r}; `chairlift config show` lists the keys"
    suggestion = similar[0] if similar[0] in known else keys[similar[0]]
    return f"unknown key {shorten(key)!r}; did you mean {suggestion!r}?"


def _find_problem(same_key: Sequence[Setting], value: Value) -> Problem | None:
    """Return the problem of a value, or None when one of the settings accepts it."""
    problem = None
    for setting in same_key if not value.is_null else ():
        try:
            _parse_value(setting, value)
            return None
        except InvalidNode as error:
            problem = error.problem
    return problem


def _parse_value(setting: Setting, value: Value) -> Any:
    """Return the setting's value. Raises InvalidNode."""
    if not setting.is_repeatable:
        return _parse_one(setting, value)
    return [_parse_one(setting, item) for item in ([value] if value.items is None else value.items)]


def _parse_one(setting: Setting, value: Value) -> Any:
    text = _as_text(setting.parse, value)
    if text is None:
        expected = "a list of " * setting.is_repeatable + value_parsers.describe_parser(setting.parse)
        raise InvalidNode(value.line, f"{setting.dest} must be {expected}, got {value.describe()}")
    try:
        return setting.parse(text)
    except argparse.ArgumentTypeError as error:
        raise InvalidNode(value.line, f"{setting.dest} {shorten(str(error), MAX_MESSAGE_CHARS)}") from None


def _as_text(parse: value_parsers.ValueParser, value: Value) -> str | None:
    """Return a value as the text of a flag, or None for a value that no flag can have."""
    if value.items is not None:
        return _join_texts(value.items, ",") if parse in value_parsers.LIST_PARSERS else None
    if value.pairs is None:
        return value.text
    if parse is value_parsers.structured_output and len(value.pairs) == 1:
        return _structured_output_text(*value.pairs[0])
    if parse not in value_parsers.MAPPING_PARSERS or any(mark in name for name, _ in value.pairs for mark in ",="):
        return None
    texts = [_join_texts([inner], ",") for _, inner in value.pairs]
    if None in texts or not texts:
        return None
    return ",".join(f"{name}={text}" for (name, _), text in zip(value.pairs, texts, strict=True))


def _structured_output_text(name: str, value: Value) -> str | None:
    if value.items is not None:
        joined = _join_texts(value.items, "|")
        return None if joined is None else f"{name}={joined}"
    return name if name == "json_object" and value.text == "true" else f"{name}={value.text}" if value.text else None


def _join_texts(values: Sequence[Value], separator: str) -> str | None:
    """Join texts with a separator.

    Returns None for an empty list, a value that is not a text, and a text with the separator.
    """
    texts = [value.text for value in values if value.text is not None and separator not in value.text]
    return separator.join(texts) if texts and len(texts) == len(values) else None
