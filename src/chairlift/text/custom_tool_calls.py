"""CustomCallParser: calls of custom tools, whose input is free text, as calls of functions with one string.

{"type": "custom", "custom": {"name": "apply_patch"}}  ──>  a function with the parameter `input`
{"input": "*** Begin Patch\\n..."} of the model         ──>  the text of the string, as it comes
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from chairlift.text.chat_messages import INPUT
from chairlift.text.tool_formats.tool_call_parser import (
    CustomCallInput,
    CustomCallStart,
    Piece,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
)

_BEFORE_VALUE = f'{{"{INPUT}":"'
_SPACE = " \t\r\n"
_HEX_DIGITS = 4


def function_of(custom: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that stands for a custom tool; a grammar of its input is part of the description."""
    description, form = custom.get("description"), custom.get("format")
    texts = [description] if isinstance(description, str) and description else []
    grammar = form.get("grammar", form) if isinstance(form, Mapping) else {}
    if isinstance(grammar, Mapping) and isinstance(definition := grammar.get("definition"), str):
        texts.append(f"The input follows this grammar ({grammar.get('syntax', 'lark')}):\n\n{definition}")
    schema = {
        "type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT], "additionalProperties": False,
    }  # fmt: skip
    return {"name": custom.get("name"), "description": "\n\n".join(texts), "parameters": schema}


class InputReader:
    """Reads the string of `{"input": "..."}` as its text arrives.

    Arguments of another form are returned at their end: the only string among them, or the text as it is.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # characters of the text that were read
        self._num_matched = 0  # characters of _BEFORE_VALUE, without white space, that were found
        self._is_other = self._has_ended = False

    def push(self, delta: str) -> str:
        """Add more of the arguments; return the text of the input that is certain now."""
        self._text += delta
        while self._at < len(self._text) and self._num_matched < len(_BEFORE_VALUE) and not self._is_other:
            char = self._text[self._at]
            if char == _BEFORE_VALUE[self._num_matched]:
                self._num_matched += 1
            elif char not in _SPACE or self._is_within_key:
                self._is_other = True
            self._at += 1
        return "" if self._is_other or self._num_matched < len(_BEFORE_VALUE) else self._take()

    def flush(self) -> str:
        """Return what is left at the end of the arguments."""
        if self._num_matched == len(_BEFORE_VALUE):
            return ""  # a call that max_tokens has cut off
        try:
            value = json.loads(self._text)
        except (ValueError, RecursionError):
            return self._text
        strings = [each for each in value.values() if isinstance(each, str)] if isinstance(value, dict) else [value]
        return strings[0] if len(strings) == 1 and isinstance(strings[0], str) else self._text

    @property
    def _is_within_key(self) -> bool:
        """Whether the place is within the quotes of the key."""
        return 1 < self._num_matched < len(_BEFORE_VALUE) - 2

    def _take(self) -> str:
        """Return the decoded text up to the end, without an escape that is not whole."""
        found: list[str] = []
        while self._at < len(self._text) and not self._has_ended:
            char = self._text[self._at]
            if char == '"':
                self._has_ended = True
                break
            size = 1 if char != "\\" else self._escape_size()
            if size == 0:
                break
            found.append(_unescaped(self._text[self._at : self._at + size]) if char == "\\" else char)
            self._at += size
        return "".join(found)

    def _escape_size(self) -> int:
        """Return the characters of the escape at the place, both halves of a pair; 0 for one that is not whole."""
        rest = self._text[self._at : self._at + 2 * (2 + _HEX_DIGITS)]
        if len(rest) < 2:
            return 0
        if rest[1] != "u":
            return 2
        if len(rest) < 2 + _HEX_DIGITS:
            return 0
        if not rest[2:4].lower().startswith(("d8", "d9", "da", "db")):
            return 2 + _HEX_DIGITS
        second = rest[2 + _HEX_DIGITS :]
        if not "\\u".startswith(second[:2]):
            return 2 + _HEX_DIGITS  # the first half of a pair, alone
        return len(rest) if len(second) == 2 + _HEX_DIGITS else 0


def _unescaped(escape: str) -> str:
    try:
        text: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return text.encode("utf-8", "replace").decode()  # half of a pair is no character


class CustomCallParser:
    """Parses the calls of an answer by another parser, and turns those of custom tools into their inputs."""

    def __init__(self, parser: ToolCallParser, names: Collection[str]) -> None:
        self._parser, self._names = parser, frozenset(names)
        self._index, self._reader = -1, InputReader()

    def push(self, delta: str) -> list[Piece]:
        """See ToolCallParser."""
        return self._translated(self._parser.push(delta))

    def flush(self) -> list[Piece]:
        """See ToolCallParser."""
        return [*self._translated(self._parser.flush()), *self._ended()]

    def _translated(self, pieces: list[Piece]) -> list[Piece]:
        result: list[Piece] = []
        for piece in pieces:
            match piece:
                case ToolCallStart(index, name):
                    result += self._ended()
                    is_custom = name in self._names
                    if is_custom:
                        self._index, self._reader = index, InputReader()
                    result.append(CustomCallStart(index, name) if is_custom else piece)
                case ToolCallArguments(index, text) if index == self._index:
                    result += self._inputs(self._reader.push(text))
                case _:
                    result.append(piece)
        return result

    def _ended(self) -> list[Piece]:
        """Return the rest of the input of the custom call that is open."""
        rest = self._inputs(self._reader.flush()) if self._index >= 0 else []
        self._index = -1
        return rest

    def _inputs(self, text: str) -> list[Piece]:
        return [CustomCallInput(self._index, text)] if text else []
