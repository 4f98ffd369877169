"""read_call_object: a call with its name and arguments as one JSON object, read as it comes."""

import re
from collections.abc import Collection, Sequence

from chairlift.text.tool_formats.answer_scan_and_marker_readers import read_past_space
from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.json_values import read_json_value, string_value
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner

NAME_KEYS = ("name", "tool_name", "function")
ARGUMENTS_KEYS = ("arguments", "parameters")
SYNTAX_KEYS = ("type", "id", "tool_call_id")
CALL_KEYS = frozenset({*NAME_KEYS, *ARGUMENTS_KEYS, *SYNTAX_KEYS})
"""Keys of an object that is a call although no marker precedes it."""

_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")


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
            self._add(_object_in_string(_without_cut_escape("".join(raw)) + '"') or "".join(raw))
            raise
        text = "".join(raw)
        if text and text != "null":
            self._has_arguments = True
            self._add(_object_in_string(text) or text)

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


def _read_key(scanner: Scanner) -> Scan[str | None]:
    """Read a key after its opening quotation mark, and the colon; return None where it is not a key."""
    raw: list[str] = []
    yield from read_json_value(scanner, '"', raw.append)
    char = yield from read_past_space(scanner)
    if char != ":":
        scanner.unread(char)
        return None
    return string_value("".join(raw))


def _without_cut_escape(text: str) -> str:
    """Return the beginning of a JSON string without an incomplete escape sequence at its end."""
    return _CUT_ESCAPE.sub(r"\1", text)


def _object_in_string(text: str) -> str | None:
    """Return the value of a JSON string that is an object as text, None for any other text."""
    value = string_value(text)
    return value if value is not None and value.lstrip(SPACE).startswith("{") else None
