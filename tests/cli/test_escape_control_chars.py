"""escape_control_chars: control characters do not reach a terminal, and text for other files stays as it is."""

import io

from chairlift.cli.escape_control_chars import escape_control_chars
from support_cli import Terminal


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = "a\x1b[2J\x07\x9b\r\tb\n中"
    assert escape_control_chars(text, Terminal()) == "a\ufffd[2J\ufffd\ufffd\ufffd\tb\n中"
    assert escape_control_chars(text, io.StringIO()) == text
