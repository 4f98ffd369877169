"""Parser: an argparse parser whose errors are one sentence without the usage text."""

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from chairlift.cli.help_formatter import HelpFormatter
from chairlift.cli.settings.setting_declaration import Setting

ARGPARSE_MESSAGES = (
    (re.compile(r"^(-\S+): (?=must |names )"), r"\1 "),
    (re.compile(r"^(-\S+): expected one argument$"), r"\1 needs a value"),
    (re.compile(r"^(-\S+): expected at least one argument$"), r"\1 needs a value"),
    (re.compile(r"^(-\S+): not allowed with argument (\S+)$"), r"\1 and \2 cannot be given together"),
    (re.compile(r"^the following arguments are required: (.+)$"), r"\1 is required"),
)
"""Messages of argparse and of value parsers, with the sentences that replace them."""


class UsageError(Exception):
    """The command line is not valid; the message is one sentence."""


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

    def parse_known_args(  # type: ignore[override]  # one signature for the overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse words whose flags may have underscores for hyphens: --max_memory is --max-memory."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(hyphenated_flags(words), namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a text, such as the help. Raises OSError, which argparse itself hides."""
        (file or sys.stderr).write(message)

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
        names = {flag.lstrip("-"): flag for flag in self._option_string_actions}  # dashes would make all names similar
        similar = difflib.get_close_matches(name.lstrip("-").lower(), names, n=1)
        hint = f"did you mean {names[similar[0]]}?" if similar else f"`{self.prog} --help` lists the options"
        raise UsageError(f"unknown option {name}; {hint}")


def hyphenated_flags(words: Sequence[str]) -> list[str]:
    """Return the words with hyphens for the underscores in the names of flags.

    Values stay, and so do texts with a space, which argparse takes for values, and every word behind the word --.
    """
    end = list(words).index("--") if "--" in words else len(words)
    flags = (_hyphenated(word) if word.startswith("--") else word for word in words[:end])
    return [*flags, *words[end:]]


def _hyphenated(word: str) -> str:
    name, equals, value = word.partition("=")
    return word if " " in name else name.replace("_", "-") + equals + value
