"""Parser: the command line's grammar, which says what is wrong in one sentence instead of printing its usage."""

import argparse
import difflib
from typing import Any, NoReturn

from chairlift.cli.settings.settings import Setting


class UsageError(Exception):
    """The command line cannot be understood."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Room for the longest flag, so that most options take one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations; an error raises BadUsage.

    Attributes:
        leftover: the sentence for a word that belongs to no option, with {word} in it.
        taken: the settings that it takes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})
        self.leftover = "what is {word}?"
        self.taken: list[Setting] = []

    def take(self, setting: Setting, group: argparse._ActionsContainer) -> None:
        """Declare a setting, in a group of this parser."""
        setting.add_to(group)
        self.taken.append(setting)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(message.removeprefix("argument "))

    def refuse(self, word: str) -> NoReturn:
        """Say what is wrong with a word that nobody took."""
        if not word.startswith("-"):
            raise UsageError(self.leftover.format(word=repr(word)))
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1)
        raise UsageError(f"unknown option {name}" + (f", did you mean {near[0]}?" if near else ""))
