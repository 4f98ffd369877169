"""Tool calls: told from the text around them while it comes, in the notations that chat templates teach models.

    hermes     <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them, text around them
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], or [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}
    llama3     <|python_tag|>{"name": "f", "parameters": {...}}; {...}, also without the tag when it is the whole answer

Every character is looked at once, whatever the pieces in which the text arrives, and what turns out to be no call is
text again: nothing that a model said is lost. The arguments of a call are passed on as they come, once its name is
known.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

HERMES, MISTRAL, LLAMA3 = "hermes", "mistral", "llama3"
MARKS = {HERMES: "<tool_call>", MISTRAL: "[TOOL_CALLS]", LLAMA3: "<|python_tag|>"}
"""Notation -> what opens a call; a chat template that writes it teaches that notation."""

CLOSE = {HERMES: "</tool_call>", MISTRAL: ",", LLAMA3: ";"}
"""Notation -> what ends a call, or stands between two."""

ARGUMENTS = ("arguments", "parameters")
SPACE = " \t\r\n"
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class Text:
    """What the assistant says."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call begins; calls of an answer are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Text | Call | Arguments


def notation_of(template: str) -> str | None:
    """Return the notation that a chat template teaches, None where it knows no calls."""
    return next((notation for notation, mark in MARKS.items() if mark in template), None)


class JsonEnd:
    """Finds the end of a JSON value, character by character, without building it."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False
        self._in_word = False

    def push(self, char: str) -> bool:
        """Take a character; True when it is the last one of the value (of a number or word: the one behind it)."""
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


class CallReader:
    """Reads the JSON object of one call, its name and arguments in any order. Owns the text of that object.

    Attributes:
        name: once it is known.
        is_over: whether the object has ended.
        has_all_arguments: whether their value has.
        is_told: whether its name was told in news().
    """

    def __init__(self, index: int) -> None:
        self.name: str | None = None
        self.is_over = self.has_all_arguments = self.is_told = False
        self._index = index
        self._raw: list[str] = []
        self._end = JsonEnd()
        self._token: list[str] = []  # the key, or the value, of the object that is being read
        self._key: str | None = None
        self._value: JsonEnd | None = None
        self._held: list[str] = []  # arguments that nobody was told of
        self._has_arguments = False

    def push(self, char: str) -> None:
        """Take a character of the object; the first one is its brace."""
        self._raw.append(char)
        before = self._end.depth
        self.is_over = self._end.push(char)
        if self._value is not None:
            self._read_value(char)
        elif before == 1:
            self._read_key(char)

    def news(self) -> list[Piece]:
        """Return what came since the last time; nothing before the name is known."""
        made: list[Piece] = []
        if self.name is None:
            return made
        if not self.is_told:
            self.is_told = True
            made.append(Call(self._index, self.name))
        if self.is_over and not self._has_arguments:
            self._has_arguments = True
            self._held.append("{}")
        if self._held:
            made.append(Arguments(self._index, "".join(self._held)))
            self._held.clear()
        return made

    def text(self) -> str:
        """Return all that was read."""
        return "".join(self._raw)

    def _read_key(self, char: str) -> None:
        """Read what stands between two values: a key in quotation marks, and the colon behind it."""
        if char == ":" and not self._end.in_string:
            self._key = _string("".join(self._token).strip())
            self._token, self._value = [], JsonEnd()
        elif char != "," or self._end.in_string:
            self._token.append(char)

    def _read_value(self, char: str) -> None:
        assert self._value is not None
        if not self._token and char in SPACE:
            return
        outside = not self._end.in_string and (self.is_over or (char == "," and self._end.depth == 1))
        if outside and not self._value.depth:
            self._take_in()  # a number or a word ends where something else begins
            return
        self._token.append(char)
        if self._key in ARGUMENTS and self._token[0] == "{":
            self._has_arguments = True
            self._held.append(char)
        if self._value.push(char):
            self._take_in()

    def _take_in(self) -> None:
        """Take a value: a name, or arguments that are JSON within a string."""
        text, key = "".join(self._token), self._key
        self._token, self._key, self._value = [], None, None
        said = _string(text)
        self.has_all_arguments = self.has_all_arguments or key in ARGUMENTS
        if key == "name" and said:
            self.name = said
        elif key in ARGUMENTS and said is not None:
            self._has_arguments = True
            self._held.append(said)


def _string(text: str) -> str | None:
    """Return what a JSON string says, None for anything else."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


class _Held:
    """Text that waits until it is known what it is: white space, and what stands behind it."""

    def __init__(self) -> None:
        self._blank: list[str] = []
        self._rest: list[str] = []

    def add(self, text: str) -> None:
        """Take a character, or a text that is not blank."""
        (self._blank if not self._rest and text in SPACE else self._rest).append(text)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but white space."""
        return not self._rest

    @property
    def rest(self) -> str:
        """What stands behind the white space; asked for only while that is short."""
        return "".join(self._rest)

    def drop_last(self) -> None:
        """Forget the last character, which was no white space at the beginning."""
        self._rest.pop()

    def take(self) -> str:
        """Return all of it, and hold nothing."""
        text = "".join([*self._blank, *self._rest])
        self._blank, self._rest = [], []
        return text


class ToolCalls:
    """Tells the calls of one answer from its text.

    Owns what may yet become a mark or a call. Each state is a method that takes the next character:

        _outside ── mark ──> _opening ── { ──> _inside ── } ──> _after ── end mark ──> _outside
                                 └── f ──> _naming ── { ──┘        └── another { ──> _inside
    """

    def __init__(self, notation: str) -> None:
        """Read a notation of MARKS."""
        self._notation, self._mark = notation, MARKS[notation]
        self._between = CLOSE[notation] + SPACE
        self._step: Callable[[ToolCalls, str], None] = ToolCalls._outside  # bound, it would hold itself
        self._held = _Held()  # what may yet be the mark, and from there to the call
        self._name: list[str] = []
        self._call: CallReader | None = None
        self._calls = 0
        self._is_bare = notation == LLAMA3  # whether a brace may open a call without the mark
        self._in_list = False
        self._made: list[Piece] = []

    def push(self, delta: str) -> list[Piece]:
        """Take new text; return what is certain now."""
        for char in delta:
            self._step(self, char)
        if self._call is not None:
            self._made += self._call.news()
        return self._taken()

    def flush(self) -> list[Piece]:
        """Return what was held back: the answer is over."""
        is_blank, held = self._held.is_blank, self._held.take()
        if self._call is not None:
            is_blank, held = (True, "") if self._call.is_told else (False, held + self._call.text())
            self._calls += self._call.is_told
            self._call = None
        if self._step != ToolCalls._after and not (is_blank and self._calls):
            self._say(held)
        return self._taken()

    def _taken(self) -> list[Piece]:
        """Return the pieces, those that follow each other in one."""
        taken: list[Piece] = []
        for key, group in groupby(self._made, key=_kind):
            each = list(group)
            if isinstance(each[0], Call):
                taken += each
            else:
                text = "".join([piece.text for piece in each if not isinstance(piece, Call)])
                taken.append(Text(text) if key is None else Arguments(key, text))
        self._made = []
        return taken

    def _say(self, text: str) -> None:
        if text:
            self._made.append(Text(text))
            self._is_bare = self._is_bare and not text.strip()

    def _outside(self, char: str) -> None:
        """Say everything but the mark; of white space behind a call only what has text behind it."""
        held = self._held
        if not held.is_blank and not self._mark.startswith(held.rest + char):
            self._say(held.take())
        if char == "{" and self._is_bare:
            held.add(char)
            self._begin()
        elif not held.is_blank or char == self._mark[0]:
            held.add(char)
            if held.rest == self._mark:
                self._step = ToolCalls._opening
        elif char in SPACE and self._calls:
            held.add(char)
        else:
            self._say(held.take() + char)

    def _opening(self, char: str) -> None:
        """Look for the brace of a call between a mark and it."""
        self._held.add(char)
        if char == "{":
            self._begin()
        elif self._notation == MISTRAL and not self._in_list and char == "[":
            self._in_list = True
        elif self._notation == MISTRAL and not self._in_list and char not in SPACE:
            self._name, self._step = [char], ToolCalls._naming
        elif char not in SPACE:
            self._give_up()

    def _naming(self, char: str) -> None:
        """Read the name that stands before the arguments."""
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
        """Begin a call, whose brace is the last of what is held; with a name it is that of the arguments."""
        self._call = CallReader(self._calls)
        if name is not None:
            for char in f'{{"name": {json.dumps(name)}, "arguments": ':
                self._call.push(char)
        self._held.drop_last()
        self._step = ToolCalls._inside
        self._inside("{")

    def _inside(self, char: str) -> None:
        call = self._call
        assert call is not None
        call.push(char)
        if self._name and call.has_all_arguments:
            call.push("}")
        if not call.is_over:
            return
        self._made += call.news()
        self._call, self._name = None, []
        if call.name is None:
            self._held.add(call.text())
            self._give_up()
            return
        self._calls += 1
        self._held.take()
        self._step = ToolCalls._after

    def _after(self, char: str) -> None:
        """Look for the mark that ends a call, or for another call."""
        held = self._held
        if self._notation == HERMES:
            held.add(char)
            if held.is_blank or CLOSE[HERMES].startswith(held.rest):
                if held.rest == CLOSE[HERMES]:
                    held.take()
                    self._step = ToolCalls._outside
            else:
                self._again()
        elif self._in_list and held.is_blank and char == "]":
            held.take()
            self._step, self._in_list = ToolCalls._outside, False
        elif char == "{" and (self._in_list or self._notation == LLAMA3):
            held.add(char)
            self._begin()
            held.take()
        else:
            held.add(char)
            if char not in self._between:
                self._again()

    def _give_up(self) -> None:
        """Say what is held: it is no call."""
        self._name, self._in_list = [], False
        self._step = ToolCalls._outside
        self._say(self._held.take())

    def _again(self) -> None:
        """Read what stands behind a call as text: it was no end mark."""
        text, self._in_list = self._held.take(), False
        self._step = ToolCalls._outside
        for char in text:
            self._step(self, char)


def _kind(piece: Piece) -> int | None:
    """Return what pieces that may become one have in common: None for text, the call for arguments."""
    return None if isinstance(piece, Text) else -1 - piece.index if isinstance(piece, Call) else piece.index
