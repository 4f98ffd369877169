"""read_json_value, read_call_object, ArgumentsWriter: JSON in calls, read as it comes and written for the client."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.readers import at_marker, read_past_space, read_token
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner

NAME_KEYS = ("name", "tool_name", "function")
ARGUMENTS_KEYS = ("arguments", "parameters")
SYNTAX_KEYS = ("type", "id", "tool_call_id")
CALL_KEYS = frozenset({*NAME_KEYS, *ARGUMENTS_KEYS, *SYNTAX_KEYS})
"""Keys of an object that is a call although no marker precedes it."""

_OUTSIDE_STRINGS = frozenset(f'{SPACE}{{}}[]:,"+-.0123456789Etruefalsn')
"""Characters that JSON may have outside of its strings."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")


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


class _CallObject:
    """Reads one call written as a JSON object, after its opening brace."""

    def __init__(self, scanner: Scanner, ends: Sequence[str], names: Collection[str] | None) -> None:
        """Start to read; `names` are the names that a call without a marker may have."""
        self._scanner = scanner
        self._ends = ends
        self._names = names
        self._is_started = self._has_arguments = False
        self._pending: list[str] = []  # arguments before the name
        self._others: list[str] = []  # members that calls do not have, as written

    def read(self) -> Scan[None]:
        """Read to the end of the object. Raises NotACall where no name comes."""
        scanner = self._scanner
        while (char := (yield from read_past_space(scanner))) != "}":
            if char == "," and self._is_started:
                scanner.drop_held()
                scanner.hold(char)
            elif char == '"' and (yield from self._read_member()):
                continue
            elif char != ",":
                if self._is_started:
                    scanner.unread(scanner.held_text().removeprefix(","))  # the brace is missing: the rest is text
                    break
                raise NotACall
        if not self._is_started:
            raise NotACall
        scanner.drop_held()
        if not self._has_arguments:
            scanner.add_arguments("{}")
        scanner.end_call()

    def _read_member(self) -> Scan[bool]:
        """Read a key after its quotation mark, and the value; return False if it is not a member of a call."""
        scanner = self._scanner
        start = 0 if self._others and self._is_started else scanner.num_held - 1
        try:
            key = yield from _read_key(scanner)
        except EndOfAnswer:
            text = scanner.held_text(start)
            if self._is_started and not any(each.startswith(text.lstrip(f'{SPACE},"')) for each in CALL_KEYS):
                scanner.emit_text(text)
            raise
        if key is None or (self._names is not None and not self._is_started and key not in CALL_KEYS):
            return False
        char = yield from read_past_space(scanner)
        if key in ARGUMENTS_KEYS and not self._has_arguments:
            yield from self._read_arguments(char)
        elif key in NAME_KEYS and not self._is_started:
            raw: list[str] = []
            yield from read_json_value(scanner, char, raw.append, self._ends)
            if name := string_value("".join(raw)):
                self._start(name)
        else:
            yield from self._read_other(key, char, start)
        return True

    def _start(self, name: str) -> None:
        if self._names and name not in self._names:
            raise NotACall
        scanner = self._scanner
        scanner.emit_text(",".join(self._others))
        scanner.start_call(name)
        self._is_started = True
        scanner.add_arguments("".join(self._pending))

    def _add(self, text: str) -> None:
        if self._is_started:
            self._scanner.add_arguments(text)
        else:
            self._pending.append(text)

    def _read_arguments(self, first: str) -> Scan[None]:
        """Read arguments, which are an object, an object as JSON text, or anything else, which stays as written."""
        if first in "{[":
            self._has_arguments = True
            yield from read_json_value(self._scanner, first, self._add, self._ends)
            return
        raw: list[str] = []
        try:
            yield from read_json_value(self._scanner, first, raw.append, self._ends)
        except EndOfAnswer:
            self._add(_decoded(_without_cut_escape("".join(raw)) + '"') or "".join(raw))
            raise
        text = "".join(raw)
        if text and text != "null":
            self._has_arguments = True
            self._add(_decoded(text) or text)

    def _read_other(self, key: str, first: str, start: int) -> Scan[None]:
        """Read a member that calls do not have; it is text as it is written."""
        scanner = self._scanner
        try:
            yield from read_json_value(scanner, first, lambda _: None, self._ends)
        except EndOfAnswer:
            if self._is_started and key not in SYNTAX_KEYS:
                scanner.emit_text(scanner.held_text(start))
            raise
        if key in SYNTAX_KEYS:
            return
        self._others.append(scanner.held_text(start))
        if self._is_started:
            scanner.emit_text(self._others[-1])
            scanner.drop_held()


def read_call_object(scanner: Scanner, ends: Sequence[str] = (), *, names: Collection[str] | None = None) -> Scan[None]:
    """Read a call, {"name": "f", "arguments": {...}} with its keys in any order, after its opening brace.

    The object ends at one of `ends` if its brace is missing. Members that calls do not have are text. Where `names`
    are given, no marker precedes the object: before its name it has no other keys than those of calls, and it calls one
    of `names` if there are any. Raises NotACall when the object ends without a name.
    """
    yield from _CallObject(scanner, ends, names).read()


def _decoded(text: str) -> str | None:
    """Return the value of a JSON string that is an object as text, None for any other text."""
    value = string_value(text)
    return value if value is not None and value.lstrip(SPACE).startswith("{") else None


def _without_cut_escape(text: str) -> str:
    """Return the beginning of a JSON string without an incomplete escape sequence at its end."""
    return _CUT_ESCAPE.sub(r"\1", text)


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

    def add_cut(self, key: str, value: str) -> None:
        """Add an argument at the end of the answer; its value is the beginning of JSON text."""
        if value:
            self.add(key, value)

    def start_string(self, key: str) -> None:
        """Start an argument that is a string."""
        self.add(key, '"')

    def add_string(self, text: str) -> None:
        """Add text to the string."""
        is_plain = text == " " or text.isalnum()  # for speed: such text is the same in JSON
        self._scanner.add_arguments(text if is_plain else json_string(text)[1:-1])

    def end_string(self) -> None:
        """End the string."""
        self._scanner.add_arguments('"')

    def end(self) -> None:
        """End the object and the call."""
        self._scanner.add_arguments("{}" if self._separator == "{" else "}")
        self._scanner.end_call()
