"""ToolCallParser: separates tool calls from streamed text, in the notations that chat templates teach models.

    hermes     <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them, text around them
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], or [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}
    llama3     <|python_tag|>{"name": "f", "parameters": {...}}; {...}, also without the tag when it is the whole answer

Each character is processed once, however the text is split, and text that turns out to be no call is emitted as text:
no output of a model is lost. The arguments of a call are streamed once its name is known.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

HERMES, MISTRAL, LLAMA3 = "hermes", "mistral", "llama3"
START_MARKERS = {HERMES: "<tool_call>", MISTRAL: "[TOOL_CALLS]", LLAMA3: "<|python_tag|>"}
"""Notation -> marker that opens a call; a chat template that contains it teaches that notation."""

CLOSE = {HERMES: "</tool_call>", MISTRAL: ",", LLAMA3: ";"}
"""Notation -> marker that ends a call or separates two calls."""

ARGUMENTS = ("arguments", "parameters")
SPACE = " \t\r\n"
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the assistant."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The start of a call; `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = TextDelta | ToolCallStart | ToolCallArguments


def detect_tool_format(template: str) -> str | None:
    """Return the notation that a chat template teaches, None for a template without calls."""
    return next((notation for notation, mark in START_MARKERS.items() if mark in template), None)


class JsonScanner:
    """Finds the end of a JSON value, character by character, without building it."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False
        self._in_word = False

    def push(self, char: str) -> bool:
        """Add a character; return True for the last one of the value (of a number or word: the one after it)."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self.in_string = False
                return self.depth == 0
            return False
        if char == '"':
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
            return self.depth <= 0
        elif self.depth == 0:
            if char in SPACE or char == ",":
                return self._in_word
            self._in_word = True
        return False


class ToolCallJsonParser:
    """Parses the JSON object of one call, with name and arguments in any order; owns its text.

    Attributes:
        name: None until it is known.
        is_over: whether the object has ended.
        has_all_arguments: whether the value of the arguments has ended.
        is_started: whether drain() has returned the ToolCallStart.
    """

    def __init__(self, index: int) -> None:
        self.name: str | None = None
        self.is_over = self.has_all_arguments = self.is_started = False
        self._index = index
        self._raw: list[str] = []
        self._end = JsonScanner()
        self._token: list[str] = []  # the current key or value of the object
        self._key: str | None = None
        self._value: JsonScanner | None = None
        self._held: list[str] = []  # arguments that drain() has not returned
        self._has_arguments = False

    def push(self, char: str) -> None:
        """Add a character of the object; the first one is its brace."""
        self._raw.append(char)
        before = self._end.depth
        self.is_over = self._end.push(char)
        if self._value is not None:
            self._read_value(char)
        elif before == 1:
            self._read_key(char)

    def drain(self) -> list[Piece]:
        """Return the pieces since the last call; nothing before the name is known."""
        pieces: list[Piece] = []
        if self.name is None:
            return pieces
        if not self.is_started:
            self.is_started = True
            pieces.append(ToolCallStart(self._index, self.name))
        if self.is_over and not self._has_arguments:
            self._has_arguments = True
            self._held.append("{}")
        if self._held:
            pieces.append(ToolCallArguments(self._index, "".join(self._held)))
            self._held.clear()
        return pieces

    def text(self) -> str:
        """Return all text of the object so far."""
        return "".join(self._raw)

    def _read_key(self, char: str) -> None:
        """Read the text between two values: a key in quotation marks, and the colon after it."""
        if char == ":" and not self._end.in_string:
            self._key = _string("".join(self._token).strip())
            self._token, self._value = [], JsonScanner()
        elif char != "," or self._end.in_string:
            self._token.append(char)

    def _read_value(self, char: str) -> None:
        assert self._value is not None
        if not self._token and char in SPACE:
            return
        outside = not self._end.in_string and (self.is_over or (char == "," and self._end.depth == 1))
        if outside and not self._value.depth:
            self._end_value()  # a number or a word ends at the next character
            return
        self._token.append(char)
        if self._key in ARGUMENTS and self._token[0] == "{":
            self._has_arguments = True
            self._held.append(char)
        if self._value.push(char):
            self._end_value()

    def _end_value(self) -> None:
        """Use a complete value: a name, or arguments that are JSON within a string."""
        text, key = "".join(self._token), self._key
        self._token, self._key, self._value = [], None, None
        decoded = _string(text)
        self.has_all_arguments = self.has_all_arguments or key in ARGUMENTS
        if key == "name" and decoded:
            self.name = decoded
        elif key in ARGUMENTS and decoded is not None:
            self._has_arguments = True
            self._held.append(decoded)


def _string(text: str) -> str | None:
    """Return the value of a JSON string, None for any other text."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


class _HeldText:
    """Held-back text that may be a marker or a call: leading white space and the rest."""

    def __init__(self) -> None:
        self._blank: list[str] = []
        self._rest: list[str] = []

    def add(self, text: str) -> None:
        """Add a character, or a text that is not blank."""
        (self._blank if not self._rest and text in SPACE else self._rest).append(text)

    @property
    def is_blank(self) -> bool:
        """Whether the held text is only white space."""
        return not self._rest

    @property
    def rest(self) -> str:
        """The text after the white space; used only while it is short."""
        return "".join(self._rest)

    def drop_last(self) -> None:
        """Drop the last character, which is not leading white space."""
        self._rest.pop()

    def take(self) -> str:
        """Return and forget the held text."""
        text = "".join([*self._blank, *self._rest])
        self._blank, self._rest = [], []
        return text


class ToolCallParser:
    """Separates the calls of one answer from its text.

    Owns the text that may yet become a marker or a call. Each state is a method that takes the next character:

        _outside ─ marker ─> _opening ── { ──> _inside ── } ──> _after ─ end marker ─> _outside
                                 └── f ──> _naming ── { ──┘        └── another { ──> _inside
    """

    def __init__(self, notation: str) -> None:
        """Start outside of a call; `notation` is one of START_MARKERS."""
        self._notation, self._marker = notation, START_MARKERS[notation]
        self._between = CLOSE[notation] + SPACE
        self._step: Callable[[ToolCallParser, str], None] = ToolCallParser._outside  # unbound: no reference cycle
        self._held = _HeldText()  # possible marker, and the text from there to the call
        self._name: list[str] = []
        self._call: ToolCallJsonParser | None = None
        self._calls = 0
        self._is_bare = notation == LLAMA3  # whether a brace may open a call without the marker
        self._in_list = False
        self._pieces: list[Piece] = []

    def push(self, delta: str) -> list[Piece]:
        """Add new text; return the pieces that are certain now."""
        for char in delta:
            self._step(self, char)
        if self._call is not None:
            self._pieces += self._call.drain()
        return self._drain()

    def flush(self) -> list[Piece]:
        """Return the held-back pieces at the end of the answer."""
        is_blank, held = self._held.is_blank, self._held.take()
        if self._call is not None:
            is_blank, held = (True, "") if self._call.is_started else (False, held + self._call.text())
            self._calls += self._call.is_started
            self._call = None
        if self._step != ToolCallParser._after and not (is_blank and self._calls):
            self._emit_text(held)
        return self._drain()

    def _drain(self) -> list[Piece]:
        """Return and forget the pieces, adjacent ones of one kind merged."""
        drained: list[Piece] = []
        for key, group in groupby(self._pieces, key=_kind):
            each = list(group)
            if isinstance(each[0], ToolCallStart):
                drained += each
            else:
                text = "".join([piece.text for piece in each if not isinstance(piece, ToolCallStart)])
                drained.append(TextDelta(text) if key is None else ToolCallArguments(key, text))
        self._pieces = []
        return drained

    def _emit_text(self, text: str) -> None:
        if text:
            self._pieces.append(TextDelta(text))
            self._is_bare = self._is_bare and not text.strip()

    def _outside(self, char: str) -> None:
        """Emit everything except the marker; white space after a call only when text follows it."""
        held = self._held
        if not held.is_blank and not self._marker.startswith(held.rest + char):
            self._emit_text(held.take())
        if char == "{" and self._is_bare:
            held.add(char)
            self._begin()
        elif not held.is_blank or char == self._marker[0]:
            held.add(char)
            if held.rest == self._marker:
                self._step = ToolCallParser._opening
        elif char in SPACE and self._calls:
            held.add(char)
        else:
            self._emit_text(held.take() + char)

    def _opening(self, char: str) -> None:
        """Look for the brace of a call after a marker."""
        self._held.add(char)
        if char == "{":
            self._begin()
        elif self._notation == MISTRAL and not self._in_list and char == "[":
            self._in_list = True
        elif self._notation == MISTRAL and not self._in_list and char not in SPACE:
            self._name, self._step = [char], ToolCallParser._naming
        elif char not in SPACE:
            self._give_up()

    def _naming(self, char: str) -> None:
        """Read the name before the arguments."""
        self._held.add(char)
        if char != "{":
            self._name.append(char)
            if len(self._name) > MAX_NAME_CHARS:
                self._give_up()
            return
        name = "".join(self._name).strip(SPACE).removesuffix("[ARGS]").strip(SPACE)
        if name:
            self._begin(name)
        else:
            self._give_up()

    def _begin(self, name: str | None = None) -> None:
        """Start a call at its brace, the last held character; with `name` it starts the arguments."""
        self._call = ToolCallJsonParser(self._calls)
        if name is not None:
            for char in f'{{"name": {json.dumps(name)}, "arguments": ':
                self._call.push(char)
        self._held.drop_last()
        self._step = ToolCallParser._inside
        self._inside("{")

    def _inside(self, char: str) -> None:
        call = self._call
        assert call is not None
        call.push(char)
        if self._name and call.has_all_arguments:
            call.push("}")
        if not call.is_over:
            return
        self._pieces += call.drain()
        self._call, self._name = None, []
        if call.name is None:
            self._held.add(call.text())
            self._give_up()
            return
        self._calls += 1
        self._held.take()
        self._step = ToolCallParser._after

    def _after(self, char: str) -> None:
        """Look for the end marker of a call, or for another call."""
        held = self._held
        if self._notation == HERMES:
            held.add(char)
            if held.is_blank or CLOSE[HERMES].startswith(held.rest):
                if held.rest == CLOSE[HERMES]:
                    held.take()
                    self._step = ToolCallParser._outside
            else:
                self._reparse()
        elif self._in_list and held.is_blank and char == "]":
            held.take()
            self._step, self._in_list = ToolCallParser._outside, False
        elif char == "{" and (self._in_list or self._notation == LLAMA3):
            held.add(char)
            self._begin()
            held.take()
        else:
            held.add(char)
            if char not in self._between:
                self._reparse()

    def _give_up(self) -> None:
        """Emit the held text, which is no call."""
        self._name, self._in_list = [], False
        self._step = ToolCallParser._outside
        self._emit_text(self._held.take())

    def _reparse(self) -> None:
        """Process the held text after a call as text; it is not an end marker."""
        text, self._in_list = self._held.take(), False
        self._step = ToolCallParser._outside
        for char in text:
            self._step(self, char)


def _kind(piece: Piece) -> int | None:
    """Return the merge key of a piece.

    Returns None for text, the call's index for arguments, a negative number for the start of a call.
    """
    return (
        None if isinstance(piece, TextDelta) else -1 - piece.index if isinstance(piece, ToolCallStart) else piece.index
    )
