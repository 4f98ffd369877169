"""RenamedValues, EntryOfObject, share_of_memory, json_list: convert the values of other servers' flags."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chairlift.cli.settings.value_parsers import ValueParser, describe_parser, integer


@dataclass(frozen=True, slots=True)
class RenamedValues:
    """Parser that replaces names of another server by our own.

    Attributes:
        names: pairs of their name and our name.
    """

    names: tuple[tuple[str, str], ...]

    def __call__(self, text: str) -> str:
        """Parse one of the names."""
        names = dict(self.names)
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, got {text!r}")
        return names[text]


@dataclass(frozen=True, slots=True)
class EntryOfObject:
    """Parser of the value of one key of a setting that is a JSON object; several such flags add up.

    Attributes:
        key: the key.
        parse: parses the value.
    """

    key: str
    parse: ValueParser

    def __call__(self, text: str) -> dict[str, Any]:
        """Parse the value into an object with that key alone."""
        return {self.key: self.parse(text)}


def share_of_memory(text: str) -> float:
    """Parse a fraction of memory, which may be 1."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"must be a fraction above 0 and up to 1, got {text!r}")
    return share


def context_size(text: str) -> int | None:
    """Parse a number of tokens; 0 is the model's own limit."""
    return integer(text) or None


def thread_count(text: str) -> int | None:
    """Parse a number of threads; -1 is the default."""
    count = integer(text)
    return None if count == -1 else count


def json_list(text: str) -> list[str]:
    """Parse a JSON list of texts, or one text."""
    if not text.startswith("["):
        return [text]
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise argparse.ArgumentTypeError(f'must be a JSON list of texts such as ["*"], got {text!r}')
    return values


DESCRIPTIONS: dict[Callable[[str], Any], str] = {
    share_of_memory: "a fraction", context_size: "0 is the model's limit", thread_count: "-1 is the default",
    json_list: "a JSON list or one text",
}  # fmt: skip
"""What the values of these parsers are, in words."""


def describe_value(parse: ValueParser) -> str:
    """Return what the text of an alias with a parser of its own is, in words."""
    if isinstance(parse, EntryOfObject):
        return f"the key `{parse.key}`: {describe_value(parse.parse)}"
    if isinstance(parse, RenamedValues):
        return ", ".join(f"`{theirs}` is `{ours}`" if theirs != ours else f"`{ours}`" for theirs, ours in parse.names)
    return DESCRIPTIONS.get(parse) or describe_parser(parse)
