"""The declarations of every command's options."""

import argparse
import importlib

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.command_line import build_parser, check_command
from support_parsers import leaf_parsers
from support_shares import for_each

PARSERS = list(leaf_parsers(build_parser()))


@for_each("parser", PARSERS)
def test_every_command_names_its_module_and_has_verbose_and_quiet(parser: Parser) -> None:
    assert not parser.allow_abbrev and parser.get_default("parser") is parser
    assert callable(importlib.import_module(parser.get_default("module")).run)
    assert {"-v", "-q"} <= set(parser._option_string_actions)


@for_each("parser", PARSERS)
def test_every_help_fits_its_width(parser: Parser) -> None:
    assert max(map(len, parser.format_help().splitlines())) <= 120


@for_each("parser", PARSERS)
def test_the_parser_of_one_command_has_its_options_and_no_other_command(parser: Parser) -> None:
    words = parser.prog.split()[1:]
    alone = [each for each in leaf_parsers(build_parser(words)) if each.prog == parser.prog]
    assert [each.format_help() for each in alone] == [parser.format_help()]
    assert [each.dest for each in alone[0]._actions] == [each.dest for each in parser._actions]
    assert len(list(leaf_parsers(build_parser(words)))) <= 3


def test_an_unknown_command_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"^unknown command 'generat'; available are serve, router, fleet, autoscaler, generate"
    ):
        check_command(build_parser(), ["generat"])
    with pytest.raises(UsageError, match=r"^`chairlift` needs a command: serve, router, fleet, autoscaler, generate"):
        check_command(build_parser(), [])
    with pytest.raises(UsageError, match=r"^`chairlift bench` needs a command: serve, offline"):
        check_command(build_parser(), ["bench"])
    check_command(build_parser(), ["--version"])
    check_command(build_parser(), ["generate", "--nonsense"])


@for_each("parser", PARSERS)
def test_every_option_that_takes_a_value_shows_its_default(parser: Parser) -> None:
    """The exceptions are switches, and options whose feature is off by default."""
    exceptions = {
        "--json", "--plot", "--quick", "--stats", "--output", "--prompt", "--prompts", "--compare", "--against",
        "--peer", "--step-times", "--fit", "--save-step-times", "--help", "--verbose", "--quiet", "--admin",
        "--version", "--once", "--wait", "--force", "--input",
    }  # fmt: skip
    for action in parser._actions:
        is_hidden = action.help == argparse.SUPPRESS  # a flag of another server
        if action.option_strings and not is_hidden and not exceptions & set(action.option_strings):
            assert "default" in (action.help or ""), action.option_strings
