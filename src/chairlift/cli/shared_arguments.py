"""Arguments that several commands share: the model, verbosity, and groups of settings."""

import argparse
from collections.abc import Sequence
from typing import Any

from chairlift.cli.arg_parser import Parser
from chairlift.cli.settings import settings
from chairlift.cli.settings.foreign_flag_actions import MODEL_DEST
from chairlift.cli.settings.setting_declaration import Setting

Subcommands = argparse._SubParsersAction  # the type that add_subparsers() returns, which has no public name


def add_verbosity(parser: Parser, *, takes_file: bool = True) -> None:
    """Declare -v and -q, and --config unless the command itself is about a settings file."""
    verbosity = parser.add_mutually_exclusive_group()
    verbosity.add_argument("-v", "--verbose", action="store_true", help="log all levels and show tracebacks of errors")
    verbosity.add_argument("-q", "--quiet", action="store_true", help="print only errors on standard error")
    if takes_file:
        parser.add_setting(settings.CONFIG, parser)


def add_settings(parser: Parser, title: str, group: Sequence[Setting]) -> None:
    """Declare a group of settings under its title, or under the titles of its sections."""
    for name, section in settings.SECTIONS.get(title, {"": tuple(group)}).items():
        names = {setting.name for setting in section}
        chosen = [setting for setting in group if setting.name in names]
        if chosen:
            titled = parser.add_argument_group(f"{title}: {name}" if name else title)
            for setting in chosen:
                parser.add_setting(setting, titled)


def add_command(
    subcommands: "Subcommands[Parser]", module: str, *, help: str, description: str, usage: str,
    epilog: str | None = None, name: str = "",
) -> Parser:  # fmt: skip
    """Declare the command that `run` of a module in chairlift.cli.commands executes.

    The command's name is `name`, else the last word of the module's name: bench.bench_serve is `serve`.
    """
    shown: dict[str, Any] = {} if help is argparse.SUPPRESS else {"help": help}  # SUPPRESS would be shown
    parser = subcommands.add_parser(
        name or module.rpartition("_")[2], description=description, usage=usage, epilog=epilog, **shown
    )
    parser.set_defaults(module=f"chairlift.cli.commands.{module}", parser=parser)
    return parser


def add_model(parser: Parser) -> None:
    """Declare the positional MODEL, and --model with the same meaning."""
    parser.unexpected_word_message = "unexpected argument {word}: the command takes one MODEL"
    parser.add_setting(settings.MODEL, parser)
    parser.add_argument(
        "--model", dest=MODEL_DEST, metavar="MODEL", default=argparse.SUPPRESS,
        help="the same as the argument MODEL (default: MODEL)",
    )  # fmt: skip
