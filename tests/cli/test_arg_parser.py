"""Parser: no usage text, no abbreviations, and errors that are one sentence."""

import pytest

from chairlift.cli.arg_parser import Parser, UsageError, hyphenated_flags
from chairlift.cli.settings.setting_declaration import Setting


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="tool")
    parser.add_argument("--chairs", type=int)
    return parser


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
        ("--chair=4", "unknown option --chair; did you mean --chairs?"),
        ("--CHAIRS", "unknown option --CHAIRS; did you mean --chairs?"),
        ("--help-is", "unknown option --help-is; did you mean --help?"),
        ("--h-a", "unknown option --h-a; `tool --help` lists the options"),
        ("--zzz", "unknown option --zzz; `tool --help` lists the options"),
        ("top", "unexpected argument 'top'"),
    ],
)
def test_an_unknown_word_is_rejected(parser: Parser, word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.reject(word)
    assert str(caught.value) == sentence


def test_declared_settings_are_listed(parser: Parser) -> None:
    setting = Setting(name="slots", help="", parse=int)
    parser.add_setting(setting, parser)
    assert parser.settings == [setting] and parser.parse_args(["--slots", "3"]).slots == 3


@pytest.mark.parametrize(("message", "sentence"), [
    ("argument --max-tokens: must be an integer, got 'x'", "--max-tokens must be an integer, got 'x'"),
    ("argument --structured: names a file that cannot be read: a", "--structured names a file that cannot be read: a"),
    ("argument --max-tokens: expected one argument", "--max-tokens needs a value"),
    ("argument -q/--quiet: not allowed with argument -v/--verbose",
     "-q/--quiet and -v/--verbose cannot be given together"),
    ("the following arguments are required: TENANT", "TENANT is required"),
    ("something else", "something else"),
])  # fmt: skip
def test_messages_of_argparse_become_sentences(parser: Parser, message: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.error(message)
    assert str(caught.value) == sentence


def test_a_flag_may_have_underscores_and_its_value_keeps_them(parser: Parser) -> None:
    parser.add_argument("--max-memory")
    parser.add_argument("words", nargs="*")
    words = ["--max_memory", "a_b", "--max_memory", "--i_j is a text", "--max_memory=c_d=e_f", "--", "--g_h"]
    assert hyphenated_flags(words) == [word.replace("max_memory", "max-memory") for word in words]
    assert parser.parse_args(words[2:4]).max_memory == "--i_j is a text"
    arguments = parser.parse_args(words)
    assert (arguments.max_memory, arguments.words) == ("c_d=e_f", ["--g_h"])
    with pytest.raises(UsageError, match=r"^--max-memory needs a value$"):
        parser.parse_args(["--max_memory"])
