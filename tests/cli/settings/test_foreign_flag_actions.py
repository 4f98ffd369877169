"""add_foreign_flags: a command has the flags of its settings, and its own flags keep their meaning."""

import argparse

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.settings.foreign_flag_actions import (
    HELP_TITLE,
    MODEL_DEST,
    add_foreign_flags,
    merge_entries,
    merge_model,
)
from chairlift.cli.settings.resolve_settings import resolve
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import json_object


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="tool", epilog="The end.")
    parser.add_setting(Setting(name="max_model_len", parse=int, help=""), parser)
    parser.add_setting(Setting(name="served_model_name", is_repeatable=True, help=""), parser)
    parser.add_argument("--page-size", help="the tool's own flag")
    add_foreign_flags(parser, in_help=True)
    return parser


def test_a_command_has_only_the_aliases_of_its_settings(parser: Parser) -> None:
    assert parser.parse_args(["-c", "7"]).max_model_len == 7
    assert parser.parse_known_args(["--max-num-seqs", "7"])[1] == ["--max-num-seqs", "7"]


def test_a_flag_of_the_command_itself_keeps_its_meaning(parser: Parser) -> None:
    assert parser.parse_args(["--page-size", "x"]).page_size == "x"


def test_a_repeatable_alias_adds_to_the_flag(parser: Parser) -> None:
    arguments = parser.parse_args(["--served-model-name", "a", "--alias", "b", "-a", "c", "--served-model-name", "d"])
    assert arguments.served_model_name == ["a", "b", "c", "d"]


def test_flags_of_one_key_each_add_up_to_the_object_of_their_setting() -> None:
    parser = Parser(prog="tool")
    parser.add_setting(Setting(name="speculative_config", parse=json_object, help=""), parser)
    add_foreign_flags(parser)
    words = ["--spec-type", "ngram-simple", "--draft-max", "7", "--lookup-ngram-min", "2", "--draft", "8"]
    expected = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2}

    def parse(*words: str) -> tuple[object, str]:
        arguments = parser.parse_args(words)
        merge_entries(arguments)
        return arguments.speculative_config, arguments.written_flags["speculative_config"]

    assert parse(*words) == (expected, "--spec-type, --draft-max, --lookup-ngram-min, --draft")
    own = ["--speculative-config", '{"method": "suffix", "prompt_lookup_max": 9}']
    for line in ([*own, *words], [*words, *own], [*words[:2], *own, *words[2:]]):
        value, flags = parse(*line)
        assert value == {**expected, "prompt_lookup_max": 9} and flags.startswith("--speculative-config, --spec-type")
    with pytest.raises(UsageError, match=r"--spec-type must be one of none, ngram-simple, .*, got 'draft-mtp'"):
        parser.parse_args(["--spec-type", "draft-mtp"])


def test_an_invalid_value_is_named_with_the_flag_as_written(parser: Parser) -> None:
    with pytest.raises(UsageError, match=r"^--ctx-size must be an integer, got 'x'$"):
        parser.parse_args(["--ctx-size", "x"])


def test_the_help_lists_the_aliases_and_hides_the_flags(parser: Parser) -> None:
    text = parser.format_help()
    before, _, section = text.partition(HELP_TITLE)
    assert "The end." in before and "--ctx-size" not in before
    assert "  --max-model-len           -c, --ctx-size, --context-length" in section.splitlines()
    assert "--max-num-seqs" not in section and "  without effect            --compilation-config" in section
    assert max(map(len, section.splitlines())) <= 120


def test_an_unknown_flag_suggests_the_nearest_one_of_another_server(parser: Parser) -> None:
    with pytest.raises(UsageError, match=r"^unknown option --context-lenght; did you mean --context-length\?$"):
        parser.reject("--context-lenght")


@pytest.mark.parametrize(("positional", "flag", "model"), [(None, "a", "a"), ("a", None, "a"), (None, None, None)])
def test_a_model_is_positional_or_a_flag(positional: str | None, flag: str | None, model: str | None) -> None:
    arguments = argparse.Namespace(model=positional, **({} if flag is None else {MODEL_DEST: flag}))
    merge_model(arguments)
    assert arguments.model == model


def test_two_models_are_rejected() -> None:
    with pytest.raises(UsageError, match="MODEL is a and --model is b; give one of them"):
        merge_model(argparse.Namespace(model="a", **{MODEL_DEST: "b"}))


def test_a_setting_names_the_flag_that_was_written(parser: Parser) -> None:
    arguments = parser.parse_args(["--context-length", "7"])
    resolved = resolve(parser.settings[0], arguments, {})
    assert resolved is not None and resolved.origin == "--context-length"
