"""The parser's sentences."""

import pytest

from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.settings.settings import Setting


@pytest.fixture
def parser() -> Parser:
    made = Parser(prog="lift")
    made.add_argument("--chairs", type=int)
    return made


def test_an_error_is_a_sentence_and_no_usage(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"^--chairs: invalid int value: 'x'$"):
        parser.parse_args(["--chairs", "x"])
    assert capsys.readouterr() == ("", "")


def test_there_are_no_abbreviations(parser: Parser) -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --chair"):
        parser.parse_args(["--chair", "4"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("--chair=4", "unknown option --chair, did you mean --chairs?"),
        ("--zzz", "unknown option --zzz"),
        ("top", "what is 'top'?"),
    ],
)
def test_a_word_that_nobody_took_is_refused(parser: Parser, word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parser.refuse(word)
    assert str(refused.value) == sentence


def test_settings_that_were_declared_are_remembered(parser: Parser) -> None:
    setting = Setting(name="seats", help="", kind=int)
    parser.take(setting, parser)
    assert parser.taken == [setting] and parser.parse_args(["--seats", "3"]).seats == 3
