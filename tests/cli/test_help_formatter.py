"""HelpFormatter: paragraphs are filled, examples are folded so that a shell still reads them, options stay whole."""

import pytest

from chairlift.cli.arg_parser import Parser

DESCRIPTION = """\
A paragraph whose lines are
filled.

  chairlift bench serve --rate 2,4,8 --slo "ttft=0.5, tpot=0.05" --json result.json
  --flag name     the first word, the second word, the third word, the fourth word

  chairlift fleet update --replica-option quantization=int8 --wait --url
  kept: as it is"""


def help_lines(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    usage = "tool [--flag VALUE] [--other-flag OTHER-VALUE] [--third THIRD]"
    return Parser(prog="tool", usage=usage, description=DESCRIPTION).format_help().splitlines()


def test_a_narrow_help_breaks_lines_between_words_that_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = help_lines(monkeypatch, 60)
    assert lines[:2] == ["usage: tool [--flag VALUE] [--other-flag OTHER-VALUE]", "          [--third THIRD]"]
    assert lines[3:14] == [
        "A paragraph whose lines are filled.", "",
        "  chairlift bench serve --rate 2,4,8 \\", '      --slo "ttft=0.5, tpot=0.05" --json result.json',
        "  --flag name     the first word, the second word, the third", "                  word, the fourth word", "",
        "  chairlift fleet update \\", "      --replica-option quantization=int8 --wait --url",
        "  kept: as it is", "",
    ]  # fmt: skip


def test_a_wide_help_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = help_lines(monkeypatch, 120)
    assert set(DESCRIPTION.splitlines()[3:]) <= set(lines) and lines[1] == ""


def test_subcommands_have_their_help_on_one_line() -> None:
    parser = Parser(prog="tool")
    subcommands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name in ("a", "much-longer"):
        subcommands.add_parser(name, help=f"help of {name}")
    lines = parser.format_help().splitlines()
    assert any(line.split() == ["much-longer", "help", "of", "much-longer"] for line in lines)
