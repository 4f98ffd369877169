"""Declaring: what the commands' declarations have in common: a verb, its model, its loudness, its settings."""

import argparse
from collections.abc import Iterable

from chairlift.cli.arg_parser import Parser
from chairlift.cli.settings import settings

Verbs = argparse._SubParsersAction  # the only name argparse has for what add_subparsers() returns


def add_verbosity(parser: Parser, *, takes_file: bool = True) -> None:
    """Declare -v and -q, how to log, and the file of settings, which every verb has that is not about such a file."""
    loud = parser.add_mutually_exclusive_group()
    loud.add_argument("-v", "--verbose", action="store_true", help="log everything; tracebacks")
    loud.add_argument("-q", "--quiet", action="store_true", help="errors alone on standard error")
    if takes_file:
        parser.take(settings.CONFIG, parser)
    add_settings(parser, "logging", settings.LOGGING)


def add_settings(parser: Parser, title: str, group: Iterable[settings.Setting]) -> None:
    """Declare a group of settings under a title."""
    section = parser.add_argument_group(title)
    for setting in group:
        parser.take(setting, section)


def add_command(
    verbs: "Verbs[Parser]", module: str, *, help: str, description: str, usage: str, epilog: str | None = None
) -> Parser:
    """Declare a command that `run` of that module of this room carries out; it is called by the module's last word."""
    parser = verbs.add_parser(module.rpartition("_")[2], help=help, description=description, usage=usage, epilog=epilog)
    parser.set_defaults(module=f"chairlift.cli.commands.{module}", parser=parser)
    return parser


def add_model(parser: Parser) -> None:
    """Declare the one model that a command may take."""
    parser.leftover = "there is one MODEL, so what is {word}?"
    parser.take(settings.MODEL, parser)
