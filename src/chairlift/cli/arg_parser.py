"""Parser: an argparse parser whose errors are one sentence without the usage text."""

import argparse
import difflib
import re
from typing import Any, NoReturn

from chairlift.cli.settings.setting_declaration import Setting

ARGPARSE_MESSAGES = (
    (re.compile(r"^(-\S+): (?=must |names )"), r"\1 "),
    (re.compile(r"^(-\S+): expected one argument$"), r"\1 needs a value"),
    (re.compile(r"^(-\S+): not allowed with argument (\S+)$"), r"\1 and \2 cannot be given together"),
    (re.compile(r"^the following arguments are required: (.+)$"), r"\1 is required"),
)
"""Messages of argparse and of value parsers, with the sentences that replace them."""


class UsageError(Exception):
    """The command line is not valid; the message is one sentence."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter with a flag column so wide that most options take one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument, and count the indent of subcommands in the column width.

        Python 3.11 leaves the indent out.
        """
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """Parser that accepts no abbreviations and raises UsageError for an invalid command line.

    Attributes:
        unexpected_word_message: message for a word that is neither an option nor its value; has {word} in it.
        settings: the settings that the command has.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})
        self.unexpected_word_message = "unexpected argument {word}"
        self.settings: list[Setting] = []

    def add_setting(self, setting: Setting, group: argparse._ActionsContainer) -> None:
        """Declare a setting in a group of this parser."""
        setting.add_to(group)
        self.settings.append(setting)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing the usage text."""
        message = message.removeprefix("argument ")
        for pattern, sentence in ARGPARSE_MESSAGES:
            message = pattern.sub(sentence, message)
        raise UsageError(message)

    def reject(self, word: str) -> NoReturn:
        """Raise UsageError for a word that the parser did not recognize."""
        if not word.startswith("-"):
            raise UsageError(self.unexpected_word_message.format(word=repr(word)))
        name = word.partition("=")[0]
        similar = difflib.get_close_matches(name, self._option_string_actions, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"`{self.prog} --help` lists the options"
        raise UsageError(f"unknown option {name}; {hint}")
