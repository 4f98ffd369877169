"""Regular expressions for JSON Schema: complements of finite sets, more formats, syntax that is not supported."""

import re
from collections.abc import Iterable
from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError

ANY = r"[\s\S]"
"""Any character, line breaks, too."""

MAX_COMPLEMENT_CHARS = 4096
"""Most characters of all strings whose complement is built."""

MAX_COMPLEMENT_DEPTH = 200
"""Longest string whose complement is built: each character nests one group."""

KNOWN_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
"""Formats that llguidance enforces."""

OTHER_FORMATS: dict[str, dict[str, str]] = {
    "json-pointer": {"pattern": r"^(/([^~/]|~[01])*)*$"},
    "relative-json-pointer": {"pattern": r"^(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)$"},
    "uri-reference": {"pattern": r"^(/?{C}+(/{C}+)*/?)?(\?({C}|[=&])*)?(#{C}*)?$".replace("{C}", "[A-Za-z0-9._~-]")},
    "idn-email": {"format": "email"},
    "idn-hostname": {"format": "hostname"},
    "iri": {"format": "uri"},
}  # fmt: skip
"""Formats that a pattern or another format stands for, with only some of the format's strings where that is simpler."""

OTHER_FORMATS["iri-reference"] = OTHER_FORMATS["uri-template"] = OTHER_FORMATS["uri-reference"]

for _version in "1345678":
    OTHER_FORMATS[f"uuid{_version}"] = {"format": "uuid"}  # pydantic's names

UNENFORCED_FORMATS = frozenset({"regex"})
"""Formats of JSON Schema that no grammar enforces. Other names have no meaning in it and are annotations."""

META = re.compile(r"[\\.+*?()|\[\]{}^$/-]")
SYNTAX = re.compile(r"\\.|\[\^?(?:[^\]\\]|\\.)*\]|(?P<look>\(\?<?[=!])", re.DOTALL)
"""Escapes, character classes and lookaround."""

UNSAFE_PROPERTY = re.compile(r"\\P|\\p\{?(C|Any|Assigned|ASCII|Common|Zyyy|sc|Script)")
"""Unicode properties that control characters may have."""

PLAIN_CLASS = re.compile(r"\[(?:\^[^\\\x00-\x1f\"-]*|[^^\\\x00-\x1f][^\\\x00-\x1f]*)\]")
"""A class of characters of which none is a control character, or of all but some that are not \\ or a quote."""

CLASS_COST = 3
"""Cost of a class that is compiled to find out what it matches."""

CHARS_PER_COST = 64

EXCLUDED_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f"
CONTROLS = [chr(code) for code in range(32) if chr(code) not in "\t\n\r"]
"""Control characters apart from the usual white space."""


def escape(text: str) -> str:
    """Return a regular expression that matches exactly this text."""
    return META.sub(r"\\\g<0>", text)


def one_of(texts: Iterable[str]) -> str:
    """Return an anchored regular expression that matches the given strings only."""
    return f"^(?:{'|'.join(map(escape, texts))})$"


def none_of(texts: Iterable[str]) -> str | None:
    """Return an anchored regular expression that matches every other string; None if it would be too long."""
    unique = sorted(set(texts))
    if sum(map(len, unique)) > MAX_COMPLEMENT_CHARS or max(map(len, unique), default=0) > MAX_COMPLEMENT_DEPTH:
        return None
    trie: dict[str, Any] = {}
    for text in unique:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"^(?:{_complement(trie)})$"


def _complement(node: dict[str, Any]) -> str:
    """Return an expression for the strings that do not lead from this node of a trie to an end."""
    chars = [char for char in node if char]
    excluded = "".join(map(_in_class, chars)) + (EXCLUDED_CONTROLS if {'"', "\\"} & set(chars) else "")
    # Any character that leads away from the trie, then anything; or anything behind a leaf.
    alternatives = [f"[^{excluded}]{ANY}*" if chars else f"{ANY}+"]
    alternatives += [f"{escape(char)}(?:{_complement(node[char])})" for char in chars]
    if "" not in node:
        alternatives.append("")
    return "|".join(alternatives)


def _in_class(char: str) -> str:
    return "\\" + char if char in r"\]^-[&~" else char


def grammar_pattern(pattern: str, place: str, budget: LoweringBudget) -> str:
    """Return a pattern that is safe for llguidance. Raises UnsupportedSchemaError for what no grammar can express."""
    budget.spend(len(pattern) // CHARS_PER_COST, place)

    def safe_part(part: re.Match[str]) -> str:
        text = part[0]
        if part["look"] or (text[0] == "\\" and text[1] in "bB123456789k"):
            raise UnsupportedSchemaError(place, f"uses {text}, which no grammar can express")
        return _safe_class(text, place, budget) if text[0] == "[" else text

    return SYNTAX.sub(safe_part, pattern)


def _safe_class(text: str, place: str, budget: LoweringBudget) -> str:
    """Exclude most control characters from a class that excludes a quote or a backslash.

    llguidance 1.9 takes a class of all control characters for one that has these two.
    """
    if PLAIN_CLASS.fullmatch(text):
        return text
    budget.spend(CLASS_COST, place)
    try:
        members = re.compile(text)
    except re.error:  # syntax of other dialects, such as \p{L}
        if text[1] != "^" and not UNSAFE_PROPERTY.search(text):
            return text
        members = re.compile('[^"]')
    if (members.match('"') and members.match("\\")) or not any(map(members.match, CONTROLS)):
        return text
    if text[1] != "^":
        raise UnsupportedSchemaError(place, f"uses {text[:50]}, a class with control characters")
    return f"{text[:-1]}{EXCLUDED_CONTROLS}]"
