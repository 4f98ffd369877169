"""The declarations of every command's options."""

import argparse
import importlib

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.command_line import build_parser, check_command
from support_parsers import leaf_parsers


@pytest.mark.parametrize("parser", list(leaf_parsers(build_parser())), ids=lambda parser: parser.prog)
def test_every_command_names_its_module_and_has_verbose_and_quiet(parser: Parser) -> None:
    assert not parser.allow_abbrev and parser.get_default("parser") is parser
    assert callable(importlib.import_module(parser.get_default("module")).run)
    assert {"-v", "-q"} <= set(parser._option_string_actions)


@pytest.mark.parametrize("parser", list(leaf_parsers(build_parser())), ids=lambda parser: parser.prog)
def test_every_help_fits_its_width(parser: Parser) -> None:
    assert max(map(len, parser.format_help().splitlines())) <= 120


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


@pytest.mark.parametrize("parser", list(leaf_parsers(build_parser())), ids=lambda parser: parser.prog)
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
