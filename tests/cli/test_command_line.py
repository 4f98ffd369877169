"""Every command's options, as they are declared."""

import importlib

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.command_line import build_parser, check_verb
from support_parsers import leaves


@pytest.mark.parametrize("parser", list(leaves(build_parser())), ids=lambda parser: parser.prog)
def test_every_verb_names_the_module_that_runs_it_and_has_both_loudnesses(parser: Parser) -> None:
    assert not parser.allow_abbrev and parser.get_default("parser") is parser
    assert callable(importlib.import_module(parser.get_default("module")).run)
    assert {"-v", "-q"} <= set(parser._option_string_actions)


@pytest.mark.parametrize("parser", list(leaves(build_parser())), ids=lambda parser: parser.prog)
def test_every_help_fits_its_width(parser: Parser) -> None:
    assert max(map(len, parser.format_help().splitlines())) <= 120


def test_a_word_that_is_no_command_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"^unknown command 'generat'; there is serve, generate"):
        check_verb(build_parser(), ["generat"])
    with pytest.raises(UsageError, match=r"^no command is given; there is serve, generate"):
        check_verb(build_parser(), [])
    check_verb(build_parser(), ["--version"])
    check_verb(build_parser(), ["generate", "--nonsense"])
