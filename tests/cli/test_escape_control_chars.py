"""escape_control_chars: control characters do not reach a terminal, and text for other files stays as it is."""

import io

from chairlift.cli.escape_control_chars import escape_control_chars, escape_line
from support_cli import Terminal


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = "a\x1b[2J\x07\x9b\r\tb\n中"
    assert escape_control_chars(text, Terminal()) == "a\ufffd[2J\ufffd\ufffd\ufffd\tb\n中"
    assert escape_control_chars(text, io.StringIO()) == text


def test_a_line_has_no_character_that_ends_it_or_turns_its_direction() -> None:
    assert escape_line("a\tb\nc\u2028\u202e\u2066 \u4e2d") == "a b c\ufffd\ufffd\ufffd \u4e2d"
