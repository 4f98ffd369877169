"""read_json_value, read_valid_json: JSON in calls, read as it comes."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from chairlift.text.tool_formats.answer_scan_and_marker_readers import at_marker, read_past_space, read_token
from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.scanner import EndOfAnswer, Scan, Scanner

_OUTSIDE_STRINGS = frozenset(f'{SPACE}{{}}[]:,"+-.0123456789Etruefalsn')
"""Characters that JSON may have outside of its strings."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json_value(scanner: Scanner, first: str, add: Callable[[str], None], ends: Sequence[str] = ()) -> Scan[None]:
    """Read a JSON value of which `first` was read, and add each character; the value may be malformed.

    The character that ends a number or a word is put back, and so is one of `ends` outside of a string: the end marker
    of a call, which shows that brackets are missing.
    """
    depth, in_string, is_escaped, char = 0, False, False, first
    while True:
        if in_string:
            in_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif depth == 0 and (char in SPACE or char in ",}]"):
            scanner.unread(char)
            return
        elif char in "}]":
            depth -= 1
        elif (yield from at_marker(scanner, char, ends)):
            return
        add(char)
        if depth == 0 and not in_string and char in '"}]':
            return
        char = yield from scanner.read()


def read_valid_json(scanner: Scanner, end: str) -> Scan[str]:
    """Read an object, a list or a string in JSON, and `end` after it; return the JSON.

    Return "", with everything put back, where the text is anything else.
    """
    start = scanner.num_held
    try:
        char = yield from read_past_space(scanner)
        begin, raw = scanner.num_held - 1, ""
        if char in '{["' and (yield from _read_balanced(scanner, char)):
            raw = scanner.held_text(begin)
        if raw and is_json(raw) and (yield from read_token(scanner, (end,))):
            return raw
    except EndOfAnswer:
        pass
    scanner.unread(scanner.held_text(start))
    return ""


def _read_balanced(scanner: Scanner, char: str) -> Scan[bool]:
    """Read to the end of JSON of which `char` was read; return False at a character that it cannot have."""
    depth, in_string, is_escaped = 0, False, False
    while True:
        if in_string:
            if char < " ":
                return False
            in_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char not in _OUTSIDE_STRINGS:
            return False
        else:
            in_string = char == '"'
            depth += (char in "{[") - (char in "}]")
        if depth <= 0 and not in_string:
            return True
        char = yield from scanner.read()


def string_value(text: str) -> str | None:
    """Return the value of a JSON string, None for any other text; half a surrogate pair becomes U+FFFD."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else None


def json_string(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value, with integers of any size and without NaN."""
    try:
        json.loads(text, parse_int=len, parse_constant=_reject)
    except (ValueError, RecursionError):
        return False
    return True


def _reject(name: str) -> None:
    raise ValueError(name)
