"""escape_control_chars, escape_line: replace the control characters of texts that are shown."""

from typing import TextIO

# Control characters can move the cursor, ring the bell or set the title. Only newline and tab stay.
_CONTROL_CHARS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"
}

# Those that end a line, or reverse the order of what follows, have no place in a line.
_LINE_CONTROL_CHARS = _CONTROL_CHARS | dict.fromkeys(
    [*range(0x2028, 0x202F), *range(0x2066, 0x206A)], "\N{REPLACEMENT CHARACTER}"
)


def escape_control_chars(text: str, file: TextIO) -> str:
    """Replace the control characters of a model's output where the file is a terminal."""
    return text.translate(_CONTROL_CHARS) if file.isatty() else text


def escape_line(text: str) -> str:
    """Return text as one line without control characters, whatever it is written to."""
    return text.translate(_LINE_CONTROL_CHARS).replace("\n", " ").replace("\t", " ")
