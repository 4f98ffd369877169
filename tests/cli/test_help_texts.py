"""Help texts: every example in them is a command line that the parser accepts."""

import shlex

import pytest

from chairlift.cli import help_texts
from chairlift.cli.command_line import build_parser, check_command, command_words

TEXTS = {name: text for name, text in vars(help_texts).items() if name.endswith(("_HELP", "_END"))}
EXAMPLES = [
    command.strip()
    for text in TEXTS.values()
    for line in text.splitlines()
    if line.startswith("  chairlift ")
    for command in line.split("&&")
]


@pytest.mark.share(2)
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid_command_lines(example: str) -> None:
    words = command_words(shlex.split(example)[1:])
    parser = build_parser(words)
    check_command(parser, words)
    assert parser.parse_args(words).module.startswith("chairlift.cli.commands.")


def test_texts_fit_the_width_of_the_help() -> None:
    assert len(EXAMPLES) > 20 and max(len(line) for text in TEXTS.values() for line in text.splitlines()) <= 120
