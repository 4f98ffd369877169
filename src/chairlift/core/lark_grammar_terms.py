"""lark_regex, lark_sequence, text_without, text_up_to: texts as parts of a grammar in Lark's notation."""

import json
import re
from collections.abc import Mapping

ANY = "(?s:.*)"
"""A regular expression of any text."""
WHITESPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of a JSON text: enough for indentation, but bounded, so that every output ends."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


def escape_regex(text: str) -> str:
    """Return a regular expression that matches exactly this text."""
    return _META.sub(r"\\\g<0>", text)


def lark_regex(text: str) -> str:
    """Return a regular expression that matches exactly this text, to stand between slashes."""
    return escape_regex(text).replace("/", r"\/").replace("\n", r"\n")


def lark_string(text: str) -> str:
    """Return a string literal of this text."""
    return json.dumps(text)


def split_special(text: str, special_ids: Mapping[str, int]) -> list[str]:
    """Split a text into special tokens and the text between them; `special_ids` maps their names to their ids."""
    names = "|".join(re.escape(name) for name in sorted(special_ids, key=len, reverse=True) if name in text)
    return [part for part in re.split(f"({names})", text) if part] if names else [text] if text else []


def lark_sequence(text: str, special_ids: Mapping[str, int]) -> str:
    """Return a text as a sequence of a rule, in which special tokens stand as their ids."""
    parts = split_special(text, special_ids)
    return " ".join(f"<[{special_ids[part]}]>" if part in special_ids else lark_string(part) for part in parts)


def text_without(excluded: str) -> str:
    """Return a terminal of text without a match of the regular expression `excluded`."""
    return f"/{ANY}/ & ~/{ANY}({excluded}){ANY}/"


def text_up_to(end: str, excluded: str) -> str:
    """Return a terminal of text up to the first match of the regular expression `end`, with it.

    Before `end`, the text has no match of `excluded`, which may also match a part of `end`.
    """
    return f"/{ANY}({end})/ & ~/{ANY}({end})(?s:.+)/ & ~/{ANY}({excluded}){ANY}({end})/"
