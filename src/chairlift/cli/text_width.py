"""text_width, cut, padded: the columns that a text takes in a terminal, where some characters take two or none."""

import unicodedata

CUT = "\N{HORIZONTAL ELLIPSIS}"


def text_width(text: str) -> int:
    """Return the columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def cut(text: str, width: int) -> str:
    """Return a text that takes at most `width` columns, with an ellipsis for what is cut off."""
    if text_width(text) <= width:
        return text
    if width <= 0:
        return ""
    end, room = 0, width - len(CUT)
    while (room := room - _char_width(text[end])) >= 0:
        end += 1
    return text[:end] + CUT


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text with spaces behind it, or before it, that takes `width` columns."""
    spaces = " " * (width - text_width(text))
    return spaces + text if right else text + spaces


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
