"""Arguments that several commands declare alike."""

import argparse

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.settings import settings
from chairlift.cli.shared_arguments import add_command, add_model, add_settings, add_verbosity


def test_a_command_has_the_last_word_of_its_modules_name() -> None:
    subcommands = Parser().add_subparsers(parser_class=Parser)
    for module, name in (("serve", "serve"), ("bench.bench_offline", "offline"), ("config_show", "show")):
        parser = add_command(subcommands, module, help="", description="", usage="")
        assert (
            subcommands.choices[name] is parser and parser.get_default("module") == f"chairlift.cli.commands.{module}"
        )


def test_a_parser_lists_its_settings() -> None:
    parser = Parser()
    add_model(parser)
    add_verbosity(parser)
    add_settings(parser, "server", settings.SERVER)
    assert parser.settings == [settings.MODEL, settings.CONFIG, *settings.SERVER]
    other = Parser()
    add_verbosity(other, takes_file=False)
    assert other.settings == []
    with pytest.raises(UsageError):
        other.parse_args(["--config", "x"])


def test_verbose_and_quiet_exclude_each_other() -> None:
    parser = Parser()
    add_verbosity(parser)
    assert parser.parse_args([]) == argparse.Namespace(verbose=False, quiet=False)
    with pytest.raises(UsageError, match="cannot be given together"):
        parser.parse_args(["-v", "-q"])


def test_a_group_with_sections_has_a_title_for_each() -> None:
    parser = Parser()
    add_settings(parser, "engine", settings.SIMULATE_SETTINGS)
    add_settings(parser, "logging", settings.LOGGING)
    titles = [group.title for group in parser._action_groups][2:]
    assert titles == ["engine: model", "engine: KV cache", "engine: batch and queue", "logging"]
    assert sorted(each.name for each in parser.settings) == sorted(
        each.name for each in (*settings.SIMULATE_SETTINGS, *settings.LOGGING)
    )
