"""GENERIC: calls of models that know no format; a grammar enforces the one that generic_prompt.py explains.

Without the grammar the object may stand in a fence.

{"tool_calls": [{"name": "f", "arguments": {...}}, ...]}    or    {"response": "text of the answer"}
"""

from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_closing,
    read_past_space,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.base import ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_calls import read_objects
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

TOOL_CALLS, RESPONSE, TOOL_RESULTS = "tool_calls", "response", "tool_results"
MAX_KEY_CHARS = 32
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _make_parser(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas))


def _scan(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    yield from scan_answer(scanner, (), partial(_read_object, schemas=schemas), bare=("{", "```json", "```\n"))


def _read_object(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    if marker != "{" and (yield from read_past_space(scanner)) != "{":
        raise NotACall
    if (yield from read_past_space(scanner)) != '"':
        raise NotACall
    key, _ = yield from read_until(scanner, ('"',), MAX_KEY_CHARS)
    if key not in (TOOL_CALLS, RESPONSE) or (yield from read_past_space(scanner)) != ":":
        raise NotACall
    first = yield from read_past_space(scanner)
    if key == TOOL_CALLS and first == "[":
        yield from read_objects(scanner, first)
    elif key == RESPONSE and first == '"':
        yield from _read_response(scanner)
    else:
        raise NotACall
    yield from read_closing(scanner, ("}", "```"))


def _read_response(scanner: Scanner) -> Scan[None]:
    """Emit the text of a JSON string after its opening quotation mark; half a surrogate pair becomes U+FFFD."""
    first_half = ""
    scanner.is_closing = True  # the held text is the string's syntax
    while True:
        char = yield from scanner.read()
        is_end = char == '"'
        if char == "\\":
            char = yield from _read_escape(scanner)
        scanner.drop_held()
        if first_half:
            if "\udc00" <= char <= "\udfff":
                char = (first_half + char).encode("utf-16", "surrogatepass").decode("utf-16")
            else:
                scanner.emit_text("\ufffd")
        if is_end:
            return
        first_half = char if "\ud800" <= char <= "\udbff" else ""
        if not first_half:
            scanner.emit_text("\ufffd" if "\udc00" <= char <= "\udfff" else char)


def _read_escape(scanner: Scanner) -> Scan[str]:
    """Return the character of an escape sequence after its backslash."""
    kind = yield from scanner.read()
    if kind != "u":
        return _ESCAPED.get(kind, kind)
    digits = ""
    for _ in range(4):
        digits += yield from scanner.read()
    try:
        return chr(int(digits, 16))
    except ValueError:
        return "\ufffd"


GENERIC = ToolFormat(
    name="generic",
    make_parser=_make_parser,
    prefill='{"tool_calls": [',
    separator=", ",
    is_generic=True,
    is_enforced=True,
)
