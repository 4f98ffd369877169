"""scan_answer, read_text, read_token, read_until: what formats read with a Scanner."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from chairlift.text.tool_formats.base import SPACE
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner


def scan_answer(
    scanner: Scanner,
    markers: Sequence[str],
    read_section: Callable[[Scanner, str], Scan[None]],
    *,
    bare: Sequence[str] = (),
    hidden: Collection[str] = (),
    reasoning: Mapping[str, str] | None = None,
) -> Scan[None]:
    """Read an answer: `read_section` reads from a start marker to the end of its calls, or raises NotACall.

    Args:
        scanner: the answer.
        markers: start markers; none begins with another one.
        read_section: gets the marker, which is held, and reads at least one character.
        bare: start markers that count only at the beginning of the answer.
        hidden: markers that are left out of the text.
        reasoning: start of reasoning -> its end.
    """
    thoughts = reasoning or {}
    every = (*markers, *hidden, *thoughts)
    while True:
        marker = yield from read_text(scanner, every, bare)
        if marker in hidden or marker in thoughts:
            scanner.drop_held()
            if marker in thoughts:
                yield from _read_reasoning(scanner, thoughts[marker])
            continue
        try:
            yield from read_section(scanner, marker)
        except NotACall:
            scanner.give_up()


def _read_reasoning(scanner: Scanner, end: str) -> Scan[None]:
    """Emit the reasoning behind its start, and read its end and the white space behind it."""
    scanner.start_reasoning()
    yield from read_text(scanner, (end,))
    scanner.drop_held()
    scanner.end_reasoning()
    scanner.is_closing = True
    char = yield from read_past_space(scanner)
    scanner.unread(char)
    scanner.drop_held()
    scanner.is_closing = False


def read_text(scanner: Scanner, markers: Sequence[str], bare: Sequence[str] = ()) -> Scan[str]:
    """Emit text up to one of the markers; return the marker, which is held.

    White space after a call is held, too: it is text only if more text follows. The markers in `bare` count only where
    nothing but white space was emitted.
    """
    possible = ""  # the end of the held text that may begin a marker
    stops = re.compile("[" + "".join({re.escape(marker[0]) for marker in (*markers, *bare)}) + "]")
    while True:
        scanner.stops = None if possible or scanner.is_after_call else stops
        char = yield from scanner.read()
        scanner.stops = None
        grown = possible + char
        possible = _marker_start(grown, markers, () if scanner.has_text or scanner.num_calls else bare)
        if possible and possible == grown:
            if possible in markers or possible in bare:
                return possible
        elif len(grown) > 1 or not scanner.is_after_call or char not in SPACE:
            scanner.emit_held(keep=len(possible))


def _marker_start(text: str, markers: Sequence[str], bare: Sequence[str]) -> str:
    """Return the longest end of the text that begins a marker; only the whole text may begin one of `bare`."""
    if any(marker.startswith(text) for marker in bare):
        return text
    while text and not any(marker.startswith(text) for marker in markers):
        text = text[1:]
    return text


def read_past_space(scanner: Scanner) -> Scan[str]:
    """Return the next character that is not white space."""
    while (char := (yield from scanner.read())) in SPACE:
        pass
    return char


def read_token(scanner: Scanner, tokens: Sequence[str], *, skips_space: bool = True) -> Scan[str]:
    """Read one of the tokens, after white space if that may be skipped; return it, or "" with everything put back.

    No token begins with another one.
    """
    text: list[str] = []
    token = ""
    while True:
        char = yield from scanner.read()
        text.append(char)
        if skips_space and not token and char in SPACE:
            continue
        token += char
        if token in tokens:
            return token
        if not any(each.startswith(token) for each in tokens):
            scanner.unread("".join(text))
            return ""


def at_marker(scanner: Scanner, char: str, markers: Sequence[str]) -> Scan[bool]:
    """Return whether one of the markers begins with `char`, which was read, and follows; it is put back.

    If not, only `char` was read.
    """
    if not any(marker[0] == char for marker in markers):
        return False
    scanner.unread(char)
    marker = yield from read_token(scanner, markers, skips_space=False)
    if marker:
        scanner.unread(marker)
        return True
    yield from scanner.read()
    return False


def read_closing(scanner: Scanner, tokens: Sequence[str]) -> Scan[None]:
    """Read the end markers of a call, in any order and number, with white space before each."""
    scanner.is_closing = True
    while (yield from read_token(scanner, tokens)):
        scanner.drop_held()
    scanner.is_closing = False


def read_until(scanner: Scanner, ends: Sequence[str], limit: float) -> Scan[tuple[str, str]]:
    """Return the text before the first of the ends, and that end. Raises NotACall after `limit` characters."""
    text: list[str] = []
    last_chars, longest = {end[-1] for end in ends}, max(map(len, ends))
    while len(text) < limit:
        char = yield from scanner.read()
        text.append(char)
        if char in last_chars:
            recent = "".join(text[-longest:])
            for end in ends:
                if recent.endswith(end):
                    return "".join(text)[: -len(end)], end
    raise NotACall


@dataclass(frozen=True, slots=True)
class ValueEnds:
    """The markers after the text of an argument.

    Attributes:
        end: end of the value.
        closing: ends of the call, where `end` may be missing.
        starts: starts of another call.
    """

    end: str
    closing: tuple[str, ...]
    starts: tuple[str, ...] = ()


def read_value(scanner: Scanner, ends: ValueEnds, write: Callable[[str], None]) -> Scan[None]:
    """Write the text of an argument as it comes, and read its end.

    A line break at the beginning and one before the end are left out. After an end of the call the text is held: it is
    a part of the value if the end of the value follows. If another call or the end of the answer comes first, the end
    of the value is missing, and the text is put back.
    """
    markers = tuple(before + end for end in (ends.end, *ends.closing) for before in ("", "\n"))
    char = yield from scanner.read()
    if char != "\n":
        scanner.unread(char)
    marker = yield from read_text_before(scanner, markers, write)
    if not marker.endswith(ends.end) and (value := (yield from _read_rest(scanner, marker, ends))) is not None:
        write(value)


def read_text_before(scanner: Scanner, markers: Sequence[str], write: Callable[[str], None]) -> Scan[str]:
    """Write text as it comes, up to one of the markers, which is returned."""
    possible, starts = "", {marker[0] for marker in markers}
    while possible not in markers:
        char = yield from scanner.read()
        if not possible and char not in starts:
            write(char)
            continue
        grown = possible + char
        possible = _marker_start(grown, markers, ())
        if len(possible) < len(grown):
            write(grown[: len(grown) - len(possible)])
    return possible


def _read_rest(scanner: Scanner, closing: str, ends: ValueEnds) -> Scan[str | None]:
    """Return the rest of a value after an end of its call; None, with everything put back, if it is not a value."""
    text, stops = list(closing), (ends.end, *ends.starts)
    last_chars, longest = {stop[-1] for stop in stops}, max(map(len, stops))
    while True:
        try:
            char = yield from scanner.read()
        except EndOfAnswer:
            break
        text.append(char)
        if char in last_chars:
            recent = "".join(text[-longest:])
            if recent.endswith(ends.end):
                return "".join(text)[: -len(ends.end)].removesuffix("\n")
            if recent.endswith(ends.starts):
                break
    scanner.unread("".join(text))
    return None
