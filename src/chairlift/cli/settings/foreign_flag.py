"""ForeignFlag: a flag of vLLM, SGLang or llama.cpp, and what `chairlift` does with it."""

from dataclasses import dataclass
from typing import Any

from chairlift.cli.settings.value_parsers import ValueParser
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
