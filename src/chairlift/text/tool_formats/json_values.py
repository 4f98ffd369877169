"""read_json_value, read_call_object, ArgumentsWriter: JSON in calls, read as it comes and written for the client."""

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.readers import read_past_space
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner

NAME_KEYS = ("name", "tool_name", "function")
ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({*NAME_KEYS, *ARGUMENTS_KEYS, "type", "id", "tool_call_id"})
"""Keys of an object that is a call although no marker precedes it."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json_value(scanner: Scanner, first: str, add: Callable[[str], None]) -> Scan[None]:
    """Read a JSON value of which `first` was read, and add each character; the value may be malformed.

    The character that ends a number or a word is put back.
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
        add(char)
        if depth == 0 and not in_string and char in '"}]':
            return
        char = yield from scanner.read()


def read_call_object(scanner: Scanner, *, is_bare: bool = False, names: Collection[str] = ()) -> Scan[None]:
    """Read a call, {"name": "f", "arguments": {...}} with its keys in any order, after its opening brace.

    An object that `is_bare` has no other keys than those of calls, and calls one of `names` if there are any.
    Raises NotACall when the object ends without a name.
    """
    is_started = has_arguments = False
    pending: list[str] = []  # arguments before the name

    def add(text: str) -> None:
        if is_started:
            scanner.add_arguments(text)
        else:
            pending.append(text)

    while (char := (yield from read_past_space(scanner))) != "}":
        if char != '"':
            if char != "," and not is_started:
                raise NotACall
            continue
        key = yield from _read_key(scanner)
        if key is None or (is_bare and not is_started and key not in CALL_KEYS):
            if not is_started:
                raise NotACall
            continue
        char = yield from read_past_space(scanner)
        if key in ARGUMENTS_KEYS and char == "{" and not has_arguments:
            has_arguments = True
            yield from read_json_value(scanner, char, add)
            continue
        raw: list[str] = []
        yield from read_json_value(scanner, char, raw.append)
        text = "".join(raw)
        value = string_value(text)
        if key in NAME_KEYS and value and not is_started:
            if is_bare and names and value not in names:
                raise NotACall
            scanner.start_call(value)
            is_started = True
            scanner.add_arguments("".join(pending))
        elif key in ARGUMENTS_KEYS and value is not None and not has_arguments:
            has_arguments = True
            add(value if value.lstrip(SPACE).startswith("{") else text)
    if not is_started:
        raise NotACall
    if not has_arguments:
        scanner.add_arguments("{}")
    scanner.end_call()


def _read_key(scanner: Scanner) -> Scan[str | None]:
    """Read a key after its opening quotation mark, and the colon; return None where it is not a key."""
    raw: list[str] = []
    yield from read_json_value(scanner, '"', raw.append)
    char = yield from read_past_space(scanner)
    if char != ":":
        scanner.unread(char)
        return None
    return string_value("".join(raw))


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


class ArgumentsWriter:
    """Writes the arguments of a started call one after the other, as one JSON object."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._separator = "{"

    def add(self, key: str, value: str) -> None:
        """Add an argument whose value is JSON text."""
        self._scanner.add_arguments(f"{self._separator}{json_string(key)}: {value}")
        self._separator = ", "

    def end(self) -> None:
        """End the object and the call."""
        self._scanner.add_arguments("{}" if self._separator == "{" else "}")
        self._scanner.end_call()
