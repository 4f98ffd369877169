"""What the commands' declarations have in common."""

import argparse

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.arguments import add_command, add_model, add_settings, add_verbosity
from chairlift.cli.settings import settings


def test_a_verb_is_called_by_the_last_word_of_its_module() -> None:
    verbs = Parser().add_subparsers(parser_class=Parser)
    for module, name in (("serve", "serve"), ("bench_offline", "offline"), ("config_show", "show")):
        parser = add_command(verbs, module, help="", description="", usage="")
        assert verbs.choices[name] is parser and parser.get_default("module") == f"chairlift.cli.commands.{module}"


def test_a_parser_knows_the_settings_that_it_takes() -> None:
    parser = Parser()
    add_model(parser)
    add_verbosity(parser)
    add_settings(parser, "server", settings.SERVER)
    assert parser.taken == [settings.MODEL, settings.CONFIG, *settings.LOGGING, *settings.SERVER]
    other = Parser()
    add_verbosity(other, takes_file=False)
    assert other.taken == list(settings.LOGGING)
    with pytest.raises(UsageError):
        other.parse_args(["--config", "x"])


def test_loudness_is_one_or_the_other() -> None:
    parser = Parser()
    add_verbosity(parser)
    assert parser.parse_args([]) == argparse.Namespace(verbose=False, quiet=False)
    with pytest.raises(UsageError, match="not allowed with"):
        parser.parse_args(["-v", "-q"])
