"""read_raw, python_json, gemma_json: values in other notations than JSON, read to their end and converted to JSON.

A value is read as raw text while its quotes and brackets are followed. The conversion maps its tokens to JSON's, and
the result counts if it is JSON. Nothing is evaluated. What cannot be converted becomes a string.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from chairlift.text.tool_formats.answer_scan_and_marker_readers import at_marker
from chairlift.text.tool_formats.json_values import is_json, json_string, string_value
from chairlift.text.tool_formats.scanner import Scan, Scanner

ReadQuoted = Callable[[Scanner, list[str]], Scan[None]]
"""Reads to the end of a string if the raw text ends with its opening quote."""

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_OPENING = {"(": "[", "[": "[", "{": "{"}
_CLOSING = {")": "]", "]": "]", "}": "}"}
_BRACKETS = _OPENING | _CLOSING
_PYTHON = re.compile(
    r"""\s*(?:(?P<prefix>[rRuUbBfF]{0,2})(?:(?P<triple>'''|\"\"\")(?P<long>[^\\]*?(?:\\.[^\\]*?)*?)(?P=triple)"""
    r"""|'(?!'')(?P<single>[^'\\]*(?:(?:\\.|'(?=\w))[^'\\]*)*)'"""
    r"""|"(?!"")(?P<double>[^"\\]*(?:(?:\\.|"(?=\w))[^"\\]*)*)")"""
    r"""|(?P<word>[-+]?[\w.]+(?:(?<=[eE])[-+]\d+)?)|(?P<sign>[][(){},:]))""",
    re.DOTALL,
)
_CUT_PYTHON = re.compile(r"\s*[rRuUbBfF]{0,2}(?P<quote>'''|\"\"\"|'|\")(?P<text>.*)", re.DOTALL)
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:x.?|u.{0,3}|U.{0,7}|[0-7]{0,2})\Z", re.DOTALL)
_CUT_NUMBER = re.compile(r"[-+]?[\d.]*([eE][-+]?\d*)?")
_ESCAPE = re.compile(r"\\(\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_ESCAPED |= {char: char for char in "\\'\"/"}


def read_raw(
    scanner: Scanner, raw: list[str], ends: Collection[str], read_quoted: ReadQuoted, closing: Sequence[str]
) -> Scan[str]:
    """Add the raw text up to one of `ends` outside of quotes and brackets to `raw`; return that character.

    A closing bracket without an opening one is an end, too. Return "" at one of the `closing` markers outside of
    quotes, which is put back: brackets are missing.
    """
    depth = 0
    while True:
        char = yield from scanner.read()
        if depth == 0 and (char in ends or char in _CLOSING):
            return char
        if (yield from at_marker(scanner, char, closing)):
            return ""
        raw.append(char)
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        else:
            yield from read_quoted(scanner, raw)


def read_python_string(scanner: Scanner, raw: list[str]) -> Scan[None]:
    """Read to the end of a Python string, which may have triple quotes.

    A quote before a character of a word is a part of the string: some templates, and the models that learned from them,
    do not escape it ('it's').
    """
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
        if num_read == num_quotes == 1:
            following = yield from scanner.read()
            scanner.unread(following)
            num_read = int(not (following.isalnum() or following == "_"))


def quoted_by(quote: str) -> ReadQuoted:
    """Return a reader of strings that begin and end with the same marker, or with a quotation mark as JSON has them."""

    def read_quoted(scanner: Scanner, raw: list[str]) -> Scan[None]:
        if raw[-1] == '"' and _begins_value(raw):
            yield from _read_json_string(scanner, raw)
            return
        if raw[-1] != quote[-1] or "".join(raw[-len(quote) :]) != quote:
            return
        start = len(raw)
        while len(raw) < start + len(quote) or raw[-1] != quote[-1] or "".join(raw[-len(quote) :]) != quote:
            raw.append((yield from scanner.read()))

    return read_quoted


def _begins_value(raw: list[str]) -> bool:
    """Return whether the last character of the raw text is the first one of a value or a key."""
    before = next((char for char in reversed(raw[:-1]) if not char.isspace()), "")
    return before in ("", *"[{:,")


def _read_json_string(scanner: Scanner, raw: list[str]) -> Scan[None]:
    """Read a JSON string after its opening quotation mark."""
    is_escaped, char = False, ""
    while is_escaped or char != '"':
        is_escaped = char == "\\" and not is_escaped
        char = yield from scanner.read()
        raw.append(char)


def python_json(text: str) -> str:
    """Return the JSON of a Python literal; other text as a string."""
    return _converted(text, _PYTHON, _python_token)


def gemma_json(text: str, quote: str) -> str:
    """Return the JSON of a value in Gemma's notation: strings within `quote`, keys without quotes."""
    return _converted(text, _gemma_pattern(quote), _gemma_token)


def cut_python_json(text: str) -> str:
    """Return the beginning of the JSON of a Python literal whose end is missing; "" where it is unknown."""
    return _cut(text, _PYTHON, _python_token, _cut_python_string)


def _cut_python_string(text: str) -> str | None:
    """Return the text of a Python string whose end is missing; None for any other text."""
    match = _CUT_PYTHON.fullmatch(text)
    if match is None:
        return None
    quote, inside = match["quote"], _CUT_ESCAPE.sub(r"\1", match["text"])
    return _ESCAPE.sub(_unescaped, inside.removesuffix(quote[0]).removesuffix(quote[0]) if len(quote) > 1 else inside)


def cut_gemma_json(text: str, quote: str) -> str:
    """Return the beginning of the JSON of a value in Gemma's notation whose end is missing; "" where it is unknown."""
    cut_quotes = (quote[:size] for size in range(len(quote) - 1, 0, -1))
    text = text.removesuffix(next((cut_quote for cut_quote in cut_quotes if text.endswith(cut_quote)), ""))

    def cut_string(rest: str) -> str | None:
        rest = rest.lstrip()
        if rest.startswith('"'):
            return string_value(_CUT_ESCAPE.sub(r"\1", rest) + '"')
        return rest.removeprefix(quote) if rest.startswith(quote) else None

    return _cut(text, _gemma_pattern(quote), _gemma_token, cut_string)


def _gemma_pattern(quote: str) -> re.Pattern[str]:
    string = f"{re.escape(quote)}(?P<long>.*?){re.escape(quote)}"
    word = rf'(?P<word>(?!{re.escape(quote)}|")[^][{{}},:]+)'
    return re.compile(
        rf"""\s*(?:{string}|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<sign>[][{{}},:])|{word})""", re.DOTALL
    )


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


def _cut(
    text: str, pattern: re.Pattern[str], token: Callable[[re.Match[str]], str], cut_string: Callable[[str], str | None]
) -> str:
    """Return the tokens of the beginning of a text as JSON.

    `cut_string` returns the text of a string whose end is missing. The last token may continue; it is left out if that
    may change it.
    """
    stripped = text.strip()
    tokens: list[str] = []
    at, match = 0, None
    while at < len(stripped):
        match = pattern.match(stripped, at)
        if match is None or match.end() == at:
            if (inside := cut_string(stripped[at:])) is not None:
                return "".join(_punctuated([*tokens, json_string(inside)[:-1]]))
            return "" if stripped[at:] in ("-", "+") else json_string(stripped)[:-1]
        tokens.append(token(match))
        at = match.end()
    last = "" if match is None else (match["word"] or "").strip()
    if tokens and (tokens[-1] in (",", '""') or _may_continue(last)):
        tokens.pop()
    elif last and tokens[-1] == json_string(last):
        tokens[-1] = tokens[-1][:-1]
    elif last and not is_json(tokens[-1]):
        return json_string(stripped)[:-1]
    return "".join(_punctuated(tokens)).rstrip()


def _may_continue(word: str) -> bool:
    """Return whether a word at the end may be the beginning of a number, or of another word that is not a string."""
    if not word or word in _WORDS:
        return False
    is_cut_number = _CUT_NUMBER.fullmatch(word) is not None and not is_json(word)
    return is_cut_number or any(each.startswith(word) for each in _WORDS)


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
        return _WORDS.get(word) or (word if is_json(word) else json_string(word))
    return json_string(match["long"]) if match["long"] is not None else f'"{match["double"]}"'
