"""read_raw, python_json, gemma_json: values in other notations than JSON, read to their end and converted to JSON.

A value is read as raw text while its quotes and brackets are followed. The conversion maps its tokens to JSON's, and
the result counts if it is JSON. Nothing is evaluated. What cannot be converted becomes a string.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable

from chairlift.text.tool_formats.json_values import is_json, json_string
from chairlift.text.tool_formats.scanner import Scan, Scanner

ReadQuoted = Callable[[Scanner, list[str]], Scan[None]]
"""Reads to the end of a string if the raw text ends with its opening quote."""

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_OPENING = {"(": "[", "[": "[", "{": "{"}
_CLOSING = {")": "]", "]": "]", "}": "}"}
_BRACKETS = _OPENING | _CLOSING
_PYTHON = re.compile(
    r"""\s*(?:(?P<prefix>[rRuUbBfF]{0,2})(?:(?P<triple>'''|\"\"\")(?P<long>[^\\]*?(?:\\.[^\\]*?)*?)(?P=triple)"""
    r"""|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)")"""
    r"""|(?P<word>[-+]?[\w.]+(?:(?<=[eE])[-+]\d+)?)|(?P<sign>[][(){},:]))""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_ESCAPED |= {char: char for char in "\\'\""}


def read_raw(scanner: Scanner, ends: Collection[str], read_quoted: ReadQuoted) -> Scan[tuple[str, str]]:
    """Return the raw text up to one of `ends` outside of quotes and brackets, and that character.

    A closing bracket without an opening one is an end, too.
    """
    raw: list[str] = []
    depth = 0
    while True:
        char = yield from scanner.read()
        if depth == 0 and (char in ends or char in _CLOSING):
            return "".join(raw), char
        raw.append(char)
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        else:
            yield from read_quoted(scanner, raw)


def read_python_string(scanner: Scanner, raw: list[str]) -> Scan[None]:
    """Read to the end of a Python string, which may have triple quotes."""
    quote = raw[-1]
    if quote not in "'\"":
        return
    second = yield from scanner.read()
    num_quotes = 1
    if second == quote:
        raw.append(second)
        third = yield from scanner.read()
        if third != quote:
            scanner.unread(third)
            return
        raw.append(third)
        num_quotes = 3
    else:
        scanner.unread(second)
    is_escaped, num_read = False, 0
    while num_read < num_quotes:
        char = yield from scanner.read()
        raw.append(char)
        num_read = num_read + 1 if char == quote and not is_escaped else 0
        is_escaped = char == "\\" and not is_escaped


def quoted_by(quote: str) -> ReadQuoted:
    """Return a reader of strings that begin and end with the same marker."""

    def read_quoted(scanner: Scanner, raw: list[str]) -> Scan[None]:
        if raw[-1] != quote[-1] or "".join(raw[-len(quote) :]) != quote:
            return
        start = len(raw)
        while len(raw) < start + len(quote) or raw[-1] != quote[-1] or "".join(raw[-len(quote) :]) != quote:
            raw.append((yield from scanner.read()))

    return read_quoted


def python_json(text: str) -> str:
    """Return the JSON of a Python literal; other text as a string."""
    return _converted(text, _PYTHON, _python_token)


def gemma_json(text: str, quote: str) -> str:
    """Return the JSON of a value in Gemma's notation: strings within `quote`, keys without quotes."""
    string = f"{re.escape(quote)}(?P<long>.*?){re.escape(quote)}"
    pattern = rf"""\s*(?:{string}|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<sign>[][{{}},:])|(?P<word>[^][{{}},:]+))"""
    return _converted(text, re.compile(pattern, re.DOTALL), _gemma_token)


def _converted(text: str, pattern: re.Pattern[str], token: Callable[[re.Match[str]], str]) -> str:
    """Return the tokens of a text as JSON, or the text as a string if they are not JSON."""
    stripped = text.strip()
    tokens: list[str] = []
    at = 0
    while at < len(stripped):
        match = pattern.match(stripped, at)
        if match is None or match.end() == at:
            return json_string(stripped)
        tokens.append(token(match))
        at = match.end()
    result = "".join(_punctuated(tokens))
    return result if is_json(result) else json_string(stripped)


def _punctuated(tokens: list[str]) -> Iterable[str]:
    """Yield the tokens without trailing commas, with keys as strings, and with spaces.

    A space also stands between two values, so that they do not become one.
    """
    signs = ("[", "]", "{", "}", ",", ":", "")
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token == "," and following in ("]", "}"):
            continue
        has_space = token in (",", ":") or (token not in signs and following not in signs)
        text = json_string(token) if following == ":" and not token.startswith('"') else token
        yield f"{text} " if has_space else text


def _python_token(match: re.Match[str]) -> str:
    if match["sign"]:
        return _BRACKETS.get(match["sign"], match["sign"])
    if match["word"]:
        return _WORDS.get(match["word"]) or _number(match["word"])
    text = next(each for each in (match["long"], match["single"], match["double"]) if each is not None)
    return json_string(text if "r" in match["prefix"].lower() else _ESCAPE.sub(_unescaped, text))


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if escape in _ESCAPED:
        return _ESCAPED[escape]
    if escape[0] in "xuU" and len(escape) > 1:
        code = int(escape[1:], 16)
    elif escape[0] in "01234567":
        code = int(escape, 8)
    else:
        return match[0]
    return chr(code) if code <= 0x10FFFF else match[0]


def _number(word: str) -> str:
    """Return a Python number as JSON; any other word stays, and is not JSON."""
    text = word.removeprefix("+").replace("_", "")
    if is_json(text):
        return text
    try:
        return str(int(text, 0))
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return word
    return json.dumps(value) if math.isfinite(value) else word


def _gemma_token(match: re.Match[str]) -> str:
    if match["sign"]:
        return match["sign"]
    if match["word"]:
        word = match["word"].strip()
        return word if is_json(word) else json_string(word)
    return json_string(match["long"]) if match["long"] is not None else f'"{match["double"]}"'
