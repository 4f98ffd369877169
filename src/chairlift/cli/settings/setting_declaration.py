"""Setting: declares one option; its flag, variable, key and help line follow from it."""

import argparse
from dataclasses import dataclass
from typing import Any

from chairlift.cli.settings.value_parsers import ValueParser, boolean


class SeveralValues(argparse.Action):
    """Adds the values of a flag to a list.

    The last of several values may be the positional MODEL: `--served-model-name a MODEL`. `namespace.possible_model` is
    then the list's attribute, and that value's index.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        """Add the values."""
        added = [*(getattr(namespace, self.dest, None) or []), *values]
        setattr(namespace, self.dest, added)
        if len(values) > 1:
            namespace.possible_model = self.dest, len(added) - 1


PREFIX = "CHAIRLIFT_"
"""What the name of every environment variable begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option.

    Attributes:
        name: name of the keyword argument or config field that takes the value.
        help: one line for --help, without the default.
        parse: turns text into the value; raises ArgumentTypeError.
        metavar: placeholder of the value in --help.
        default: value when the setting is not given; "" for no value, or for one that `default_text` describes.
        default_text: the default in words, where it is not a constant: "the model's, else 1".
        is_repeatable: the flag may be given several times; the value is a list.
        flag_name: name of flag, variable and key where it differs from `name`.
        is_positional: the command line takes it without a flag.
        takes_several: the repeatable flag may have several values at once: --served-model-name a b.
        is_reloadable: a running server applies a new value when it reloads its settings file.
        needs_model: the setting has an effect only where a model is computed, not in a simulation of the scheduler.
    """

    name: str
    help: str
    parse: ValueParser = str
    metavar: str = "NAME"
    default: str | int | float = ""
    default_text: str = ""
    is_repeatable: bool = False
    flag_name: str = ""
    is_positional: bool = False
    takes_several: bool = False
    is_reloadable: bool = False
    needs_model: bool = False

    @property
    def dest(self) -> str:
        """The attribute of argparse's namespace, and the key in a settings file."""
        return self.flag_name or self.name

    @property
    def flag(self) -> str:
        """The flag on the command line: --max-tokens."""
        return self.metavar if self.is_positional else "--" + self.dest.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable: CHAIRLIFT_MAX_TOKENS."""
        return PREFIX + self.dest.upper()

    @property
    def help_text(self) -> str:
        """The line of --help: effect, whether the flag may be repeated, and default."""
        text = self.help + "; may be given several times" * self.is_repeatable
        if self.default_text:
            return f"{text} (default: {self.default_text})"
        if isinstance(self.default, bool):
            return f"{text} (default: {str(self.default).lower()})"
        return f"{text} (default: {'none' if self.default == '' else self.default})"

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Declare the option to argparse.

        A flag that is not given sets no attribute; a positional argument sets None.
        """
        if self.is_positional:
            group.add_argument(self.dest, nargs="?", metavar=self.metavar, help=self.help_text)
        elif self.parse is boolean:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(self.flag, dest=self.dest, action=action, default=argparse.SUPPRESS, help=self.help_text)
        else:
            action = SeveralValues if self.takes_several else "append" if self.is_repeatable else "store"
            group.add_argument(
                self.flag, dest=self.dest, type=self.parse, metavar=self.metavar, default=argparse.SUPPRESS,
                help=self.help_text, action=action, nargs="+" if self.takes_several else None,
            )  # fmt: skip

    def parse_variable(self, text: str) -> Any:
        """Parse the text of the environment variable.

        Raises ArgumentTypeError with the name of the variable.
        """
        try:
            value = self.parse(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{self.variable} {error}") from None
        return [value] if self.is_repeatable else value
