"""ForeignFlag: a flag of vLLM, SGLang or llama.cpp, and what `chairlift` does with it."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chairlift.cli.settings.value_parsers import ValueParser, describe_parser, integer
from chairlift.core import foreign_options
from chairlift.core.foreign_options import ForeignOption, OptionEffect

VLLM, SGLANG, LLAMA_CPP, OLLAMA = "vLLM", "SGLang", "llama.cpp", "Ollama"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFlag:
    """A flag of other servers, and the option that it is.

    Attributes:
        flags: its spellings.
        systems: the servers that have it.
        option: what it means; an alias has the key of its setting. The neutral values are texts.
        parse: converts its text to the setting's value; None for the setting's own parser.
        constant: the value that a switch sets.
        metavar: placeholder of its value; "" for a switch.
    """

    flags: tuple[str, ...]
    systems: tuple[str, ...]
    option: ForeignOption
    parse: ValueParser | None = None
    constant: Any = None
    metavar: str = ""

    @property
    def key(self) -> str:
        """The first spelling as a key of a settings file: max_num_seqs."""
        return self.flags[0].lstrip("-").replace("-", "_")

    @property
    def is_rejected(self) -> bool:
        """Whether it ends the command whatever its value."""
        return self.option.effect is OptionEffect.REFUSED and not self.option.neutral


def alias(flags: str, setting: str, *systems: str, parse: ValueParser | None = None, text: str = "") -> ForeignFlag:
    """Return a flag that takes a value of a setting; `flags` are separated by spaces."""
    option = foreign_options.alias(setting, text)
    return ForeignFlag(flags=tuple(flags.split()), systems=systems, option=option, parse=parse, metavar="VALUE")


def switch(flags: str, setting: str, constant: object, *systems: str, text: str = "") -> ForeignFlag:
    """Return a flag without a value that sets a setting to a constant."""
    option = foreign_options.alias(setting, text)
    return ForeignFlag(flags=tuple(flags.split()), systems=systems, option=option, constant=constant)


def no_effect(flags: str, text: str, *systems: str, takes_value: bool = False) -> ForeignFlag:
    """Return a flag that is accepted and changes nothing, which a warning says."""
    metavar, option = "VALUE" if takes_value else "", foreign_options.no_effect(text)
    return ForeignFlag(flags=tuple(flags.split()), systems=systems, option=option, metavar=metavar)


def only(flags: str, values: str, text: str, *systems: str) -> ForeignFlag:
    """Return a flag of which only some values, separated by spaces, can be accepted."""
    option = foreign_options.refused(text, *values.split())
    return ForeignFlag(flags=tuple(flags.split()), systems=systems, option=option, metavar="VALUE")


def rejected(flags: str, text: str, *systems: str) -> ForeignFlag:
    """Return a flag that ends the command with the reason and the nearest setting."""
    option = foreign_options.refused(text)
    return ForeignFlag(flags=tuple(flags.split()), systems=systems, option=option, metavar="VALUE")


# -- values ------------------------------------------------------------------------------------------------------------


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
    if isinstance(parse, RenamedValues):
        return ", ".join(f"`{theirs}` is `{ours}`" if theirs != ours else f"`{ours}`" for theirs, ours in parse.names)
    return DESCRIPTIONS.get(parse) or describe_parser(parse)
