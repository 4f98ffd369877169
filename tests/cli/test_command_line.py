"""The declarations of every command's options."""

import argparse
import importlib
import re

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.command_line import build_parser, check_command, command_words
from support_parsers import leaf_parsers
from support_shares import for_each

PARSERS = list(leaf_parsers(build_parser()))


@for_each("parser", PARSERS)
def test_every_command_names_its_module_and_has_verbose_and_quiet(parser: Parser) -> None:
    assert not parser.allow_abbrev and parser.get_default("parser") is parser
    assert callable(importlib.import_module(parser.get_default("module")).run)
    assert {"-v", "-q"} <= set(parser._option_string_actions)


@for_each("parser", PARSERS)
def test_every_help_fits_the_terminal(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("80", 80), ("300", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert max(map(len, parser.format_help().splitlines())) <= width


@for_each("parser", PARSERS)
def test_the_parser_of_one_command_has_its_options_and_no_other_command(parser: Parser) -> None:
    words = parser.prog.split()[1:]
    alone = [each for each in leaf_parsers(build_parser(words)) if each.prog == parser.prog]
    assert [each.format_help() for each in alone] == [parser.format_help()]
    assert [each.dest for each in alone[0]._actions] == [each.dest for each in parser._actions]
    assert len(list(leaf_parsers(build_parser(words)))) <= 3


@for_each(("line", "sentence"), [
    ("srve", "unknown command 'srve'; did you mean 'serve'?"),
    ("bench ofline", "unknown command 'bench ofline'; did you mean 'bench offline'?"),
    ("run x", "there is no command 'run'; `chairlift chat MODEL` talks with a model, and"),
    ("xyz", "unknown command 'xyz'; available are serve, router, fleet, autoscaler, generate"),
    ("", "`chairlift` needs a command: serve, router, fleet, autoscaler, generate"),
    ("--port=80 serve", "`chairlift` needs a command before --port: serve, router"),
    ("bench", "`chairlift bench` needs a command: serve, offline"),
    ("help bench ofline", "unknown command 'bench ofline'; did you mean 'bench offline'?"),
    ("help stop", "there is no command 'stop'; Ctrl-C or SIGTERM ends `chairlift serve`"),
])  # fmt: skip
def test_an_unknown_command_is_rejected_with_what_was_meant(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=rf"^{re.escape(sentence)}"):
        check_command(build_parser(), command_words(line.split()))


@for_each(("line", "words"), [
    ("help", "--help"), ("help bench offline", "bench offline --help"), ("help fleet update", "fleet-update --help"),
    ("help help", "--help"), ("help version", "--help"), ("help serve --port", "serve --help"),
    ("version", "--version"), ("fleet update x", "fleet-update x"), ("generate --nonsense", "generate --nonsense"),
])  # fmt: skip
def test_help_and_version_are_commands(line: str, words: str) -> None:
    assert command_words(line.split()) == words.split()
    check_command(build_parser(), words.split())


@for_each(("line", "values"), [
    ("serve --gpu_memory_utilization 0.5 --no_overlap", {"max_memory": 0.5, "overlap": False}),
    ("generate --max_tokens=7 --stop a_b", {"max_tokens": 7, "stop": ["a_b"]}),
    ("bench serve --request_timeout_ms 5", {"request_timeout_ms": 5}), ("top --tls_ca a_b", {"tls_ca": "a_b"}),
    ("fleet-update --replica_option max_memory=1GB", {"replica_option": ["max_memory=1GB"]}),
])  # fmt: skip
def test_a_flag_may_have_underscores_on_every_command(line: str, values: dict[str, object]) -> None:
    arguments = vars(build_parser(line.split()).parse_args(line.split()))
    assert {name: arguments[name] for name in values} == values


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
