"""unknown_command_message: commands of other tools, similar names, model names; what the advice names exists."""

import re
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser, check_command, command_words
from chairlift.cli.unknown_command import ADVICE, unknown_command_message
from support_shares import for_each

CHOICES = ("serve", "bench", "top")


@for_each(("word", "sentence"), [
    ("Serv", "unknown command 'Serv'; did you mean 'serve'?"),
    ("launch_server", "there is no command 'launch_server'; `chairlift serve MODEL` serves a model"),
    ("org/name", "'org/name' is no command; `chairlift chat org/name` and `chairlift serve org/name` take a model"),
    ("hlep", "unknown command 'hlep'; did you mean 'help'?"),
    ("verison", "unknown command 'verison'; did you mean 'version'?"),
    ("enc", "unknown command 'enc'; did you mean 'bench'?"),
    ("en", "unknown command 'en'; available are serve, bench, top"),
    ("xyz", "unknown command 'xyz'; available are serve, bench, top"),
])  # fmt: skip
def test_a_word_that_is_no_command_has_one_sentence(word: str, sentence: str) -> None:
    assert unknown_command_message((), word, CHOICES) == sentence


def test_no_suggestion_is_far_from_the_word_and_a_folder_is_a_model_only_with_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    choices = list(build_parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr]
    for word in ("docs", "install", "test", "exit", "score"):
        assert "available are" in unknown_command_message((), word, choices), word
    (tmp_path / "docs" / "config.json").touch()
    assert "`chairlift serve docs`" in unknown_command_message((), "docs", choices)


def test_a_subcommand_is_named_with_its_parent() -> None:
    assert unknown_command_message(["bench"], "serv", ("serve",)).endswith("did you mean 'bench serve'?")
    assert "`chairlift bench offline`" in unknown_command_message(["bench"], "throughput", ("serve",))


def test_the_commands_of_other_tools_are_answered_with_commands_that_exist() -> None:
    parser = build_parser()
    assert {"run", "list", "ps", "pull", "stop", "show"} <= set(ADVICE)
    for line in re.findall(r"`chairlift ([^`]+)`", " ".join(ADVICE.values())):
        check_command(parser, [*command_words(line.split()), *(["serve"] if line == "bench" else [])])
